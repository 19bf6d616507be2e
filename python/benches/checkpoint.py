"""How fast is a checkpoint loaded into tensors? `python checkpoint.py [DIRECTORY] [--device cuda]`

Saves 8 GiB of bfloat16 in 8 files (`--gib` for less) and loads them, from a warm page cache, into tensors of the device that are there already:
with torch's own FileSystemReader and with `shardfeed.checkpoint.Reader`, also comparing checksums, in turn in one run; beside plain parallel reads of the same bytes
into memory that was touched before and, for a GPU, copies from pinned memory. Prints a line for each: the best of all rounds, and what that is of
the first.
"""

import argparse
import concurrent.futures
import os
import platform
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from shardfeed.checkpoint import Reader

warnings.simplefilter("ignore")

BLOCK = 16 << 20


def save(directory: Path, gib: float) -> None:
    """In 8 files, by 8 threads."""
    rows = int(gib * 2**30) // 32 // 2 // 4096
    state = {f"model.layers.{i}.weight": torch.randint(-9, 9, (rows, 4096), dtype=torch.int16).view(torch.bfloat16) for i in range(32)}
    dcp.save(state, storage_writer=dcp.FileSystemWriter(directory, thread_count=8), no_dist=True)


def seconds(work: Callable[[], object], device: torch.device) -> float:
    begin = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - begin


def plain_reads(directory: Path, threads: int) -> Callable[[], None]:
    """Parallel reads into memory that was touched before."""
    files = [(os.open(path, os.O_RDONLY), path.stat().st_size) for path in sorted(directory.glob("*.distcp"))]
    places = [(file, at, min(BLOCK, size - at)) for file, size in files for at in range(0, size, BLOCK)]
    memory = memoryview(bytearray(sum(place[2] for place in places)))
    memory[:: 4096] = bytes(len(memory[:: 4096]))
    jobs, at = [], 0
    for file, offset, size in places:
        jobs.append((file, offset, memory[at : at + size]))
        at += size

    def read(job: tuple[int, int, memoryview]) -> None:
        assert os.preadv(job[0], [job[2]], job[1]) == len(job[2])

    pool = concurrent.futures.ThreadPoolExecutor(threads)

    def work() -> None:
        for _ in pool.map(read, jobs):
            pass

    return work


def pinned_copies(state: dict[str, torch.Tensor]) -> Callable[[], None]:
    """From one pinned tensor into all of them."""
    largest = max(state.values(), key=torch.Tensor.numel)
    pinned = torch.empty_like(largest, device="cpu", pin_memory=True)

    def work() -> None:
        for tensor in state.values():
            tensor.copy_(pinned, non_blocking=True)

    return work


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path, nargs="?")
    parser.add_argument("--device", type=torch.device, default=torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    parser.add_argument("--gib", type=float, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workers", type=int, help="threads of the Reader; it chooses by itself if this is left out")
    arguments = parser.parse_args()
    device = arguments.device
    with tempfile.TemporaryDirectory() as scratch:
        directory = arguments.directory or Path(scratch) / "checkpoint"
        if not directory.exists():
            save(directory, arguments.gib)
        metadata = dcp.FileSystemReader(directory).read_metadata().state_dict_metadata
        state = {name: torch.zeros(told.size, dtype=told.properties.dtype, device=device) for name, told in metadata.items()}
        total = sum(tensor.nbytes for tensor in state.values())

        def load(reader: Callable[[], dcp.StorageReader]) -> Callable[[], None]:
            return lambda: dcp.load(state, storage_reader=reader(), no_dist=True)

        ways = {
            "plain parallel reads": plain_reads(directory, arguments.workers or os.cpu_count() or 1),
            "torch's FileSystemReader": load(lambda: dcp.FileSystemReader(directory)),
            "shardfeed's Reader": load(lambda: Reader(directory, num_workers=arguments.workers)),
            "the same, verify=True": load(lambda: Reader(directory, num_workers=arguments.workers, verify=True)),
        }
        if device.type == "cuda":
            ways["copies from pinned memory"] = pinned_copies(state)
        times: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(arguments.rounds):
            for name, work in ways.items():
                times[name].append(seconds(work, device))
        where = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
        print(f"{total / 2**30:.1f} GiB to {where}, torch {torch.__version__}, Python {platform.python_version()}, {os.cpu_count()} cores")
        baseline = min(times["plain parallel reads"])
        for name, taken in times.items():
            best = min(taken)
            print(f"{name:26} {total / 2**30 / best:6.1f} GiB/s, first {total / 2**30 / taken[0]:6.1f}; {baseline / best:5.2f} of plain reads")


if __name__ == "__main__":
    main()
