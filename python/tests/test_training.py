"""The training run of the examples holds what it says."""

import json
import re
import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[1] / "examples" / "train_gpt.py"


def test_a_killed_run_continues_on_more_ranks_with_the_same_losses(tmp_path: Path) -> None:
    command = [sys.executable, str(EXAMPLE), str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=800, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    epochs = re.search(r"60 steps, ([\d.]+) epochs: the same tokens in each", done.stdout)
    # The run that was killed in the first epoch, in step 34, is continued into the second.
    assert epochs and 34 / 60 < 1 / float(epochs[1]) < 55 / 60, done.stdout
    # Steps 30 to 33 came after the last checkpoint and are done again; those before it are not, or nothing was continued.
    log = (tmp_path / "run" / "broken.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in log] == [*range(34), *range(30, 60)]
    assert (tmp_path / "run" / "losses.png").read_bytes().startswith(b"\x89PNG")
