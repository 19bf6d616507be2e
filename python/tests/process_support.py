"""What tests of processes, workers, signals and memory share."""

import gc
import os
import subprocess
import sys
import textwrap
from pathlib import Path

SETTINGS = {"seq_len": 32, "global_batch": 8, "seed": 7}

#: Nothing here takes a tenth of it.
SECONDS_MAX = 60


def steps(batches: object) -> list[list[list[int]]]:
    return [batch["input_ids"].tolist() for batch in batches]  # type: ignore[attr-defined]


def run(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", textwrap.dedent(script), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=SECONDS_MAX, check=False)


def native_threads() -> int:
    gc.collect()

    def is_ours(task: str) -> bool:
        try:
            return Path("/proc/self/task", task, "comm").read_text().startswith("shardfeed")
        except OSError:
            return False  # It has ended since they were listed.

    return sum(map(is_ours, os.listdir("/proc/self/task")))
