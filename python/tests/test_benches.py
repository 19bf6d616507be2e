"""Benches run, and print what they say they do. How fast anything was is nobody's business here."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import shardfeed
import torch

BENCHES = Path(__file__).parents[1] / "benches"

# Children import the package that the tests import.
PACKAGE = str(Path(shardfeed.__file__).parents[1])

#: The command line, whose engine one of them compares with.
PROGRAM = os.environ.get("SHARDFEED_PROGRAM")

#: Nothing here takes a tenth of it.
SECONDS_MAX = 120


def lines_of(bench: str, *arguments: str) -> list[str]:
    command = [sys.executable, str(BENCHES / bench), *arguments]
    environment = {**os.environ, "PYTHONPATH": PACKAGE}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=SECONDS_MAX, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


def test_the_one_of_checkpoints_prints_a_line_for_each_reader(tmp_path: Path) -> None:
    saved = tmp_path / "checkpoint"
    title, *lines = lines_of("checkpoint.py", str(saved), "--gib", "0.02", "--rounds", "1", "--device", "cpu", "--workers", "2")
    assert re.fullmatch(rf"0\.0 GiB to CPU, torch {re.escape(torch.__version__)}, Python [\d.]+\S*, \d+ cores", title)
    rates: dict[str, tuple[str, ...]] = {}
    for line in lines:
        found = re.fullmatch(r"(\S.*?) +([\d.]+) GiB/s, first +([\d.]+); +([\d.]+) of plain reads", line)
        assert found, line
        rates[found[1]] = found.groups()[1:]
    assert {"plain parallel reads", "torch's FileSystemReader", "shardfeed's Reader"} <= set(rates) and len(rates) == len(lines)
    # In one round the best is the first, and the plain reads are what the others are measured by.
    assert all(best == first for best, first, _ in rates.values())
    assert float(rates["plain parallel reads"][2]) == 1
    assert len(list(saved.glob("*.distcp"))) == 8, "it can be given again"


@pytest.mark.skipif(PROGRAM is None, reason="SHARDFEED_PROGRAM does not say where the command line is")
def test_the_one_of_streams_prints_a_line_for_each_number_of_threads(data: str) -> None:
    assert PROGRAM is not None
    lines = lines_of("stream.py", str(Path(PROGRAM).resolve()), data, "--rounds", "1", "--threads", "1", "2")
    for threads, line in zip((1, 2), lines, strict=True):
        said = rf"{threads} threads: Python \d+ M tokens/s, the engine \d+, \d+\.\d\d of it; state_dict\(\) \d+\.\d µs"
        assert re.fullmatch(said, line), line
