"""Real training loops of other libraries, on one rank and on two: each step's tokens are those of the loader."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from shardfeed import TokenLoader
from trainer_rank import EPOCHS, SETTINGS

SECONDS_MAX = 180


def train(name: str, data: str, workers: int, ranks: int, directory: Path) -> subprocess.CompletedProcess[str]:
    script = [str(Path(__file__).with_name("trainer_rank.py")), name, data, str(workers), str(directory)]
    torchrun = ["-m", "torch.distributed.run", f"--nproc-per-node={ranks}", "--standalone"] if ranks > 1 else []
    return subprocess.run([sys.executable, *torchrun, *script], capture_output=True, text=True, timeout=SECONDS_MAX, check=False)


@pytest.mark.parametrize("name", ["lightning", "hugging_face"])
@pytest.mark.parametrize(("workers", "ranks"), [(0, 1), (2, 1), (0, 2)])
def test_a_trainer_is_given_every_step_once(name: str, workers: int, ranks: int, data: str, tmp_path: Path) -> None:
    done = train(name, data, workers, ranks, tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    for rank in range(ranks):
        loader = TokenLoader(data, **SETTINGS, rank=rank, world_size=ranks)
        expected = [batch["input_ids"].tolist() for _ in range(EPOCHS) for batch in loader]
        assert json.loads((tmp_path / f"seen-{rank}.json").read_text()) == expected, f"rank {rank}"


def test_a_trainer_that_would_divide_again_is_told_what_to_do(data: str, tmp_path: Path) -> None:
    done = train("hugging_face_prepared", data, 0, 2, tmp_path)
    assert done.returncode != 0
    assert "divided already (world size 2)" in done.stderr and "get_train_dataloader" in done.stderr
