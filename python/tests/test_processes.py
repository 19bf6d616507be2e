"""Forks, spawned children, threads, and the end of the interpreter."""

import contextlib
import copy
import gc
import multiprocessing
import os
import subprocess
import sys
import textwrap
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from shardfeed import TokenLoader

from process_support import SECONDS_MAX, SETTINGS, native_threads, run, steps


def in_child(way: str, loader: TokenLoader) -> list[list[list[int]]]:
    context = multiprocessing.get_context(way)
    with context.Pool(1) as pool:
        return pool.apply_async(steps, (loader,)).get(timeout=SECONDS_MAX)


@pytest.mark.parametrize("way", ["fork", "spawn"])
def test_a_loader_goes_on_in_a_child_from_where_it_stood(data: str, way: str) -> None:
    whole = steps(TokenLoader(data, **SETTINGS))
    loader = TokenLoader(data, **SETTINGS)
    iterator = iter(loader)
    held = [next(iterator) for _ in range(3)]
    assert in_child(way, loader) == whole[3:]
    assert steps(iterator) == whole[3:], "and the parent is not disturbed"
    assert steps(held) == whole[:3]


def test_a_forked_child_that_inherits_a_loader_uses_it_and_ends(data: str) -> None:
    done = run(
        """
        import os, sys
        from shardfeed import TokenLoader
        loader = TokenLoader(sys.argv[1], seq_len=32, global_batch=8, threads=4)
        batches = [batch for batch, _ in zip(loader, range(3))]
        child = os.fork()
        rest = [batch["input_ids"].sum().item() for batch in loader]
        batches.clear()
        print(rest, flush=True)
        if child:
            assert os.waitpid(child, 0)[1] == 0
        """,
        data,
    )
    assert done.returncode == 0, done.stderr
    parent, child = done.stdout.splitlines()
    assert parent == child and len(parent) > 10


def test_a_loader_that_is_dropped_half_way_leaves_no_thread(data: str) -> None:
    before = native_threads()
    loader = TokenLoader(data, **SETTINGS, threads=4)
    next(iter(loader))
    assert native_threads() == before + 4
    del loader
    assert native_threads() == before


def test_an_exception_in_the_consumer_leaves_no_thread(data: str) -> None:
    before = native_threads()
    with pytest.raises(ZeroDivisionError):
        for batch in TokenLoader(data, **SETTINGS, threads=3):
            batch.step // 0  # noqa: B018
    assert native_threads() == before


def test_several_threads_share_a_loader_and_several_loaders_a_process(data: str) -> None:
    whole = steps(TokenLoader(data, **SETTINGS))
    loaders = [TokenLoader(data, **SETTINGS) for _ in range(3)]
    taken: list[list[Any]] = [[] for _ in range(6)]
    threads = [
        threading.Thread(target=lambda index=index: taken[index].extend(loaders[index % 3]), daemon=True) for index in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS_MAX)
        assert not thread.is_alive()
    for index in range(3):
        together = taken[index] + taken[index + 3]
        handed_out = Counter((batch.epoch, batch.step) for batch in together)
        assert set(handed_out.values()) == {1}
        # Who asks after the end begins the next epoch.
        of_first = sorted((batch for batch in together if batch.epoch == 0), key=lambda batch: batch.step)
        assert steps(of_first) == whole


def test_the_interpreter_ends_while_threads_are_at_work(data: str) -> None:
    done = run(
        """
        import sys
        from shardfeed import TokenLoader
        loader = TokenLoader(sys.argv[1], seq_len=32, global_batch=8, threads=4)
        iterator = iter(loader)
        batch = next(iterator)
        """,
        data,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_there_is_nothing_in_shared_memory_that_a_kill_could_leave(data: str) -> None:
    script = """
        import sys, torch
        from shardfeed.torch import TokenDataset
        iterator = iter(torch.utils.data.DataLoader(TokenDataset(sys.argv[1], seq_len=32, global_batch=8), batch_size=None))
        next(iterator)
        print("ready", flush=True)
        sys.stdin.read()
        """
    child = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script), data], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert child.stdout is not None and child.stdout.readline() == "ready\n"
        used = Path(f"/proc/{child.pid}/maps").read_text().splitlines()
        assert any("libtorch" in line for line in used)
        for entry in Path(f"/proc/{child.pid}/fd").iterdir():
            # Threads close files meanwhile.
            with contextlib.suppress(FileNotFoundError):
                used.append(os.readlink(entry))
        # What has no name any more goes with its last process.
        assert [line for line in used if "/dev/shm" in line and not line.endswith("(deleted)")] == []
    finally:
        child.kill()
        child.wait(SECONDS_MAX)


def test_meshes_say_which_rank(data: str) -> None:
    """Four real processes in a mesh of 2 × 2: those that differ in the second dimension alone get the same."""
    done = subprocess.run(
        [
            sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=4", "--standalone",
            str(Path(__file__).parent / "mesh_ranks.py"), data,
        ],
        capture_output=True, text=True, timeout=2 * SECONDS_MAX, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert sorted(line for line in done.stdout.splitlines() if line.startswith("rank")) == [
        "rank 0: 0 of 2, both 0 of 4",
        "rank 1: 0 of 2, both 1 of 4",
        "rank 2: 1 of 2, both 2 of 4",
        "rank 3: 1 of 2, both 3 of 4",
    ]


def test_tensors_outlive_their_loader(data: str) -> None:
    loader = TokenLoader(data, **SETTINGS)
    batch = next(iter(loader))
    copy = {name: value.clone() for name, value in batch.items()}
    del loader
    gc.collect()
    others = [next(iter(TokenLoader(data, **SETTINGS))) for _ in range(20)]
    assert all(torch.equal(batch[name], copy[name]) for name in copy) and len(others) == 20
