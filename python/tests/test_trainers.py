"""Real training loops of other libraries, on one rank and on two: each step's tokens are those of the loader."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from shardfeed import TokenLoader
from trainer_rank import EPOCHS, SETTINGS

SECONDS_MAX = 180


def train(name: str, data: str, workers: int, ranks: int, directory: Path, *resume: str) -> subprocess.CompletedProcess[str]:
    script = [str(Path(__file__).with_name("trainer_rank.py")), name, data, str(workers), str(directory), *resume]
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


@pytest.mark.parametrize(("name", "workers"), [("hugging_face", 0), ("lightning", 0), ("lightning", 2)])
def test_a_trainer_goes_on_where_it_was_saved(name: str, workers: int, data: str, tmp_path: Path) -> None:
    """As the documentation has it: in the middle of the first epoch, at its end, and in the second."""
    loader = TokenLoader(data, **SETTINGS)
    steps = len(loader)
    whole = [batch["input_ids"].tolist() for _ in range(EPOCHS) for batch in loader]

    def seen(*resume: str) -> list[object]:
        done = train(f"{name}_with_saves", data, workers, 1, tmp_path, *resume)
        assert done.returncode == 0, done.stderr[-3000:]
        return list(json.loads((tmp_path / "seen-0.json").read_text()))

    assert seen() == whole
    saved = sorted(int(path.name.split("-")[1]) for path in tmp_path.glob("checkpoint-*"))
    # Lightning saves at the end of training, too.
    assert saved == [5, steps, steps + 3, *([2 * steps] if name == "lightning" else [])]
    for step in saved[:3]:
        assert seen(str(tmp_path / f"checkpoint-{step}")) == whole[step:], step


def test_a_trainer_that_would_skip_again_is_told_what_to_do(data: str, tmp_path: Path) -> None:
    assert train("hugging_face_with_saves", data, 0, 1, tmp_path).returncode == 0
    for name in ("hugging_face_that_skips", "hugging_face_that_skips_alone"):
        done = train(name, data, 0, 1, tmp_path, str(tmp_path / "checkpoint-5"))
        assert done.returncode != 0
        assert "the first 5 batches would be left out once more" in done.stderr and "ignore_data_skip=True" in done.stderr
