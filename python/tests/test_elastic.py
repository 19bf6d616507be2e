"""Jobs of real processes that are killed and continued with another number of ranks see the steps that they would have seen."""

import json
import subprocess
import sys
from pathlib import Path

from shardfeed import TokenLoader

#: Nothing here takes a tenth of it.
SECONDS_MAX = 300

Steps = dict[int, list[list[int]]]


def job(ranks: int, data: str, scratch: Path, stop: int) -> tuple[int, Steps]:
    """Runs a job to its end, or until it is killed at a step; what its ranks have read of each step."""
    notes = scratch / f"{stop}-{ranks}"
    notes.mkdir(parents=True)
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={ranks}", "--standalone"]
        + [str(Path(__file__).parent / "elastic_rank.py"), data, str(notes), str(scratch / "state.json"), str(stop)],
        capture_output=True, text=True, timeout=SECONDS_MAX, check=False,
    )  # fmt: skip
    steps: Steps = {}
    for path in notes.iterdir():
        for line in path.read_text().splitlines():
            step, rows = json.loads(line)
            steps.setdefault(step, []).extend(rows)
    if stop < 0:
        assert done.returncode == 0, done.stderr[-2000:]
    return done.returncode, steps


def test_a_job_that_is_killed_continues_with_more_and_with_fewer_ranks(data: str, tmp_path: Path) -> None:
    whole = {batch.step: sorted(batch["input_ids"].tolist()) for batch in TokenLoader(data, seq_len=32, global_batch=8, seed=7)}
    assert len(whole) > 30
    seen: Steps = {}
    for ranks, stop in ((2, 9), (3, 17), (4, 26), (1, -1)):
        status, steps = job(ranks, data, tmp_path, stop)
        if stop >= 0:
            assert status != 0, "it was killed"
            # The step that it died in is no step that was trained on.
            assert stop in steps
            steps.pop(stop)
        assert not seen.keys() & steps.keys(), "no step is repeated"
        seen |= steps
    assert {step: sorted(rows) for step, rows in seen.items()} == whole
