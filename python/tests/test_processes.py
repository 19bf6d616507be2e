"""Forks, spawned children, workers of a DataLoader, signals, and the end of the interpreter."""

import gc
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest
import torch
from shardfeed import TokenLoader
from shardfeed.torch import TokenDataset
from torch.utils.data import DataLoader

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
    names = (Path("/proc/self/task") / task / "comm" for task in os.listdir("/proc/self/task"))
    return sum(name.read_text().startswith("shardfeed") for name in names)


@pytest.mark.parametrize("way", ["fork", "spawn", "forkserver"])
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_workers_take_turns_and_nothing_changes(data: str, way: str, workers: int) -> None:
    whole = steps(TokenLoader(data, **SETTINGS))
    dataset = TokenDataset(data, **SETTINGS, threads=2)
    # The parent's threads are at work when its children are made.
    next(iter(dataset.loader))
    dataset.set_epoch(1)
    dataset.set_epoch(0)
    loader = DataLoader(dataset, batch_size=None, num_workers=workers, multiprocessing_context=way, timeout=SECONDS_MAX)
    batches = list(loader)
    assert steps(batches) == whole
    assert [batch.step for batch in batches] == list(range(len(whole)))
    if workers == 2:
        second = steps(loader)
        one = TokenLoader(data, **SETTINGS)
        one.set_epoch(1)
        assert second == steps(one), "the next loop is the next epoch"


def test_without_workers_too(data: str) -> None:
    dataset = TokenDataset(data, **SETTINGS)
    assert steps(DataLoader(dataset, batch_size=None)) == steps(TokenLoader(data, **SETTINGS))
    assert len(DataLoader(dataset, batch_size=None)) == len(dataset) == len(dataset.loader)


@pytest.mark.parametrize("persist", [False, True])
def test_a_loop_that_was_left_early_is_followed_by_the_next_epoch_or_by_what_was_asked_for(data: str, persist: bool) -> None:
    one = TokenLoader(data, **SETTINGS)
    epochs = [steps(one) for _ in range(4)]
    dataset = TokenDataset(data, **SETTINGS)
    loader = DataLoader(dataset, batch_size=None, num_workers=2, persistent_workers=persist, timeout=SECONDS_MAX)

    def leave_after(count: int) -> tuple[list[list[list[int]]], dict[str, object]]:
        batches = [batch for batch, _ in zip(loader, range(count), strict=False)]
        return steps(batches), dataset.state_dict(after=batches[-1])

    assert steps(loader) == epochs[0]
    assert leave_after(3)[0] == epochs[1][:3]
    taken, state = leave_after(5)
    assert taken == epochs[2][:5], "nobody told the workers how far the trainer got"
    dataset.load_state_dict(state)
    assert steps(loader) == epochs[2][5:]
    assert leave_after(1)[0] == epochs[3][:1]
    dataset.set_epoch(1)
    assert steps(loader) == epochs[1]
    assert steps(loader) == epochs[2]


def test_without_workers_a_loop_goes_on_after_those_of_workers(data: str) -> None:
    one = TokenLoader(data, **SETTINGS)
    epochs = [steps(one) for _ in range(3)]
    dataset = TokenDataset(data, **SETTINGS)
    assert steps(DataLoader(dataset, batch_size=None, num_workers=2, timeout=SECONDS_MAX)) == epochs[0]
    assert steps(dataset) == epochs[1]
    assert steps(dataset) == epochs[2]


def test_with_workers_the_state_is_asked_for_by_batch(data: str) -> None:
    whole = steps(TokenLoader(data, **SETTINGS))
    dataset = TokenDataset(data, **SETTINGS)
    iterator = iter(DataLoader(dataset, batch_size=None, num_workers=2, timeout=SECONDS_MAX))
    batch = [next(iterator) for _ in range(5)][-1]
    with pytest.raises(RuntimeError, match="after=batch"):
        dataset.state_dict()
    resumed = TokenDataset(data, **SETTINGS)
    resumed.load_state_dict(dataset.state_dict(after=batch))
    assert steps(DataLoader(resumed, batch_size=None, num_workers=3, timeout=SECONDS_MAX)) == whole[5:]


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_a_stateful_data_loader_continues(data: str, workers: int) -> None:
    stateful = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader
    one = TokenLoader(data, **SETTINGS)
    whole, after = steps(one), steps(one)

    def make() -> object:
        return stateful(TokenDataset(data, **SETTINGS), batch_size=None, num_workers=workers)

    for stop in (0, 1, 4, 5):
        loader = make()
        iterator = iter(loader)  # type: ignore[call-overload]
        for _ in range(stop):
            next(iterator)
        state = pickle.loads(pickle.dumps(loader.state_dict()))  # type: ignore[attr-defined]
        again = make()
        again.load_state_dict(state)  # type: ignore[attr-defined]
        assert steps(again) == whole[stop:], f"after {stop} steps"
        assert steps(again) == after, f"the epoch after, after {stop} steps"


def test_a_wrapper_that_divides_again_is_refused(data: str) -> None:
    shard = pytest.importorskip("accelerate.data_loader").IterableDatasetShard
    dataset = TokenDataset(data, **SETTINGS, rank=0, world_size=2)
    with pytest.raises(RuntimeError, match="IterableDatasetShard.*divided already"):
        next(iter(shard(dataset, num_processes=2)))
    assert steps(dataset), "by itself it is read"
    alone = TokenDataset(data, **SETTINGS)
    assert next(iter(shard(alone, num_processes=1))) is not None


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
    taken: list[list[list[list[int]]]] = [[] for _ in range(6)]
    threads = [
        threading.Thread(target=lambda index=index: taken[index].extend(steps(loaders[index % 3]))) for index in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS_MAX)
    for index in range(3):
        together = taken[index] + taken[index + 3]
        # Who asks after the end begins the next epoch; the first epoch is there once.
        assert all(together.count(step) >= 1 for step in whole)


def test_an_interrupt_is_heard_while_a_batch_is_made(data: str) -> None:
    done = run(
        """
        import os, signal, sys, threading
        from shardfeed import TokenLoader
        # One step takes the whole data set many times over: seconds, of which none is waited for.
        loader = TokenLoader([sys.argv[1]], seq_len=1 << 16, global_batch=1 << 12, threads=1, packing="pad", memory_budget=1 << 40, tail="pad", arrays=[])
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
        try:
            next(iter(loader))
        except KeyboardInterrupt:
            print("interrupted after", loader.stats()["batches"], "batches")
        """,
        str(sorted(Path(data).glob("*.parquet"))[0]),
    )
    assert done.stdout.strip() == "interrupted after 0 batches", done.stderr


def test_the_handler_of_a_signal_may_ask_a_loader_that_waits_for_its_state(data: str) -> None:
    done = run(
        """
        import os, signal, sys, threading
        from shardfeed import TokenLoader
        # One step takes seconds, of which none is waited for.
        loader = TokenLoader([sys.argv[1]], seq_len=1 << 16, global_batch=1 << 12, threads=1, packing="pad", memory_budget=1 << 40, tail="pad", arrays=[])
        def save_and_go(*_):
            print("saved at", loader.state_dict()["position"], flush=True)
            os._exit(0)
        signal.signal(signal.SIGTERM, save_and_go)
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM)).start()
        next(iter(loader))
        """,
        str(sorted(Path(data).glob("*.parquet"))[0]),
    )
    assert done.stdout.strip() == "saved at 0", done.stderr


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


def test_a_killed_process_leaves_nothing_in_shared_memory(data: str) -> None:
    before = set(os.listdir("/dev/shm"))
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
    assert child.stdout is not None and child.stdout.readline() == "ready\n"
    child.send_signal(signal.SIGKILL)
    child.wait(SECONDS_MAX)
    assert set(os.listdir("/dev/shm")) <= before


def rss() -> int:
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_memory_stays_over_epochs_and_loaders(data: str) -> None:
    loader = TokenLoader(data, **SETTINGS)
    for _ in range(3):
        steps(loader)
    after_three = rss()
    for _ in range(10):
        steps(loader)
    assert rss() - after_three < 16 << 20
    for _ in range(50):
        next(iter(TokenLoader(data, **SETTINGS)))
    after_fifty = rss()
    for _ in range(1000):
        next(iter(TokenLoader(data, **SETTINGS)))
    assert rss() - after_fifty < 16 << 20


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
