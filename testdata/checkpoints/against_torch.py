"""How fast is Shardfeed beside torch's own reader? `python against_torch.py SHARDFEED [--keep DIR]`

Makes two checkpoints, one of 16 large tensors (2 GiB) and one of 20,000 small ones, and reads each in turn with torch's
FileSystemReader and with `SHARDFEED ckpt bench` on the same machine in the same minutes, cold and warm. Prints a line for each; for
the large tensors beside what the disk alone gives (O_DIRECT), or plain pread.
"""

import argparse
import json
import os
import subprocess
import tempfile
import time
import warnings
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp

warnings.simplefilter("ignore")


def large() -> dict:
    """2 GiB in 16 tensors."""
    return {f"model.layers.{i}.weight": torch.randint(0, 255, (8192, 4096), dtype=torch.int32) for i in range(16)}


def small() -> dict:
    """20,000 tensors of 4 KiB."""
    return {f"model.{i}": torch.full((1024,), float(i)) for i in range(20_000)}


def forget(directory: Path) -> None:
    """Takes the files out of the system's cache."""
    for path in directory.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def torch_seconds(directory: Path, state: dict, cold: bool) -> float:
    """One load into tensors that are there already."""
    if cold:
        forget(directory)
    begin = time.perf_counter()
    dcp.load(state, storage_reader=dcp.FileSystemReader(directory), no_dist=True)
    return time.perf_counter() - begin


def ours_seconds(program: str, directory: Path, cold: bool) -> tuple[float, float]:
    """The same by Shardfeed, with as many threads as it takes by itself; and how fast the machine is, in GiB/s."""
    command = [program, "ckpt", "bench", str(directory), "--rounds", "1", "--json"]
    command += ["--workers", str(2 * os.cpu_count()), *(["--cold"] if cold else [])]
    answer = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    rates = {score["reader"]: score["gib_per_s"] for score in answer["scores"]}
    plain = rates.get("the disk alone", rates["plain pread"])
    # Opening is part of what torch is measured for, too.
    return answer["open_s"] + answer["bytes"] / 2**30 / rates["shardfeed, by itself"], plain


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program")
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        root = arguments.keep or Path(scratch)
        for name, make in (("large", large), ("small", small)):
            directory, state = root / name, make()
            if not directory.exists():
                dcp.save(state, storage_writer=dcp.FileSystemWriter(directory), no_dist=True)
            size = sum(tensor.nbytes for tensor in state.values())
            for cold in (True, False):
                # In turn, and the best of each: the machine is not ours alone.
                rounds = [
                    (torch_seconds(directory, state, cold), *ours_seconds(arguments.program, directory, cold))
                    for _ in range(arguments.rounds)
                ]
                theirs, ours, plain = zip(*rounds)
                theirs, ours, plain = min(theirs), min(ours), max(plain)
                print(
                    f"{name:5} {'cold' if cold else 'warm'}: torch {size / 2**30 / theirs:6.2f} GiB/s, "
                    f"shardfeed {size / 2**30 / ours:6.2f} GiB/s, {theirs / ours:6.1f} times as fast"
                    + (f"; plain reads {plain:6.2f} GiB/s" if name == "large" else ""),
                    flush=True,
                )


if __name__ == "__main__":
    main()
