"""What a loader hands out, and where it stands."""

import ctypes
import functools
import gc
import json
import operator
import pickle
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, Literal

import numpy
import pytest
import shardfeed
import torch
from shardfeed import Batch, ShardfeedError, TokenLoader
from shardfeed.arrays import array_maker

SETTINGS = {"seq_len": 32, "global_batch": 8, "seed": 7}
ALL_ARRAYS = ("labels", "position_ids", "document_ids", "cu_seqlens")


def steps(loader: TokenLoader) -> list[list[list[int]]]:
    return [batch["input_ids"].tolist() for batch in loader]


def test_every_token_comes_once(data: str, rows: list[list[int]]) -> None:
    loader = TokenLoader(data, **SETTINGS)
    seen: Counter[int] = Counter()
    batches = list(loader)
    assert len(batches) == len(loader)
    for batch in batches:
        assert {name: value.shape for name, value in batch.items()} == {
            name: (8, 32) for name in ("input_ids", "labels", "position_ids", "document_ids")
        }
        assert all(value.dtype == torch.int64 for value in batch.values())
        real = batch["document_ids"] >= 0
        assert int(real.sum()) == batch.tokens
        assert int((batch["labels"] != -100).sum()) == batch.valid_labels
        seen.update(batch["input_ids"][real].tolist())
        # Ids of a row count up: so do labels.
        labelled = batch["labels"] != -100
        assert torch.equal(batch["labels"][labelled], batch["input_ids"][labelled] + 1)
    assert seen == Counter(token for row in rows for token in row)


def test_arrays_that_nobody_reads_are_not_made(data: str) -> None:
    batch = next(iter(TokenLoader(data, **SETTINGS, arrays=["cu_seqlens"], dtype="int32")))
    assert set(batch) == {"input_ids", "cu_seqlens"}
    assert batch["input_ids"].dtype == torch.int32
    assert batch["cu_seqlens"].tolist()[0] == 0 and batch["cu_seqlens"].tolist()[-1] == 8 * 32
    with pytest.raises(ValueError, match="unknown array 'x'|unknown array \"x\""):
        TokenLoader(data, **SETTINGS, arrays=["x"])


def test_numpy_gives_the_same(data: str) -> None:
    arrays, tensors = TokenLoader(data, **SETTINGS, output="numpy"), TokenLoader(data, **SETTINGS)
    for one, other in zip(arrays, tensors, strict=True):
        assert isinstance(one["input_ids"], numpy.ndarray)
        assert all(numpy.array_equal(one[name], other[name].numpy()) for name in other)


def test_without_torch_batches_are_numpys_by_themselves(data: str) -> None:
    script = """
import sys
from importlib.machinery import PathFinder
class WithoutTorch(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name == "torch" else super().find_spec(name, path, target)
sys.meta_path[sys.meta_path.index(PathFinder)] = WithoutTorch
from shardfeed import TokenLoader
ids = next(iter(TokenLoader(sys.argv[1], seq_len=32, global_batch=8, seed=7)))["input_ids"]
print(type(ids).__module__, "torch" in sys.modules, ids.tolist())
"""
    done = subprocess.run([sys.executable, "-c", script, data], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == f"numpy False {next(iter(TokenLoader(data, **SETTINGS)))['input_ids'].tolist()}\n"


def test_batches_are_the_trainers_own(data: str) -> None:
    loader = TokenLoader(data, **SETTINGS)
    held = []
    for batch in loader:
        before = batch["input_ids"].clone()
        batch["input_ids"] += 0  # They may be written to.
        held.append((batch["input_ids"], before))
    assert all(torch.equal(batch, before) for batch, before in held)
    # Memory that nobody holds any more is used again.
    del held, batch, before
    def addresses(keep: Callable[[Batch], object]) -> set[int]:
        # So large that the system's allocator would give it back, and not the same again.
        loader = TokenLoader(data, **{**SETTINGS, "global_batch": 256}, threads=1)
        return {batch["input_ids"].data_ptr() for _ in range(20) for batch in loader if keep(batch) is None}

    kept: list[Batch] = []
    assert len(addresses(lambda _: None)) < 16 < 100 < len(addresses(kept.append)) == len(kept)


@pytest.mark.parametrize("output", ["torch", "numpy"])
def test_no_python_runs_for_each_row_or_token(data: str, output: Literal["torch", "numpy"]) -> None:
    def work(global_batch: int, seq_len: int) -> Counter[str]:
        """What Python does for one batch: functions that are called, and lines that are gone through, by where."""
        loader = TokenLoader(data, seq_len=seq_len, global_batch=global_batch, arrays=[*ALL_ARRAYS], output=output)
        # What is done once is done.
        assert len(list(loader)) > 1
        done: Counter[str] = Counter()

        def note_call(frame: FrameType, event: str, called: Any) -> None:
            done[f"{event} {called.__qualname__ if event.startswith('c_') else frame.f_code.co_qualname}"] += 1

        def note_line(frame: FrameType, event: str, _: object) -> Any:
            done[f"{event} {frame.f_code.co_qualname}:{frame.f_lineno}"] += 1
            return note_line

        for follow, note in ((sys.setprofile, note_call), (sys.settrace, note_line)):
            iterator, before = iter(loader), done.total()
            gc.disable()
            follow(note)
            try:
                batch = next(iterator)
            finally:
                follow(None)
                gc.enable()
            assert batch["input_ids"].shape == (global_batch, seq_len) and done.total() > before
        return done

    small, large = work(8, 32), work(256, 128)
    assert small == large
    assert 0 < small.total() < 1000


def test_ranks_of_any_world_size_share_each_step(data: str) -> None:
    whole = steps(TokenLoader(data, **SETTINGS))
    for world_size in (2, 3, 5, 8):
        ranks = [steps(TokenLoader(data, **SETTINGS, rank=rank, world_size=world_size)) for rank in range(world_size)]
        assert {len(rank) for rank in ranks} == {len(whole)}
        for step, parts in enumerate(zip(*ranks, strict=True)):
            together = sorted(row for part in parts for row in part)
            assert together == sorted(whole[step]), f"step {step} of {world_size} ranks"


@pytest.mark.parametrize("stop", [0, 1, 7, -1])
def test_a_state_continues_at_another_world_size_before_or_while_iterating(data: str, stop: int) -> None:
    whole = steps(TokenLoader(data, **SETTINGS))
    stop %= len(whole) + 1
    first = TokenLoader(data, **SETTINGS, rank=1, world_size=2)
    iterator = iter(first)
    for _ in range(stop):
        next(iterator)
    state = json.loads(json.dumps(first.state_dict()))
    assert len(json.dumps(state)) < 1024
    ranks = []
    for rank in range(3):
        loader = TokenLoader(data, seq_len=32, global_batch=8, rank=rank, world_size=3)
        if rank == 1:
            iterator = iter(loader)
            next(iterator)
            loader.load_state_dict(state)
            ranks.append([batch["input_ids"].tolist() for batch in iterator])
        else:
            loader.load_state_dict(state)
            ranks.append(steps(loader))
    rest = [sorted(row for part in parts for row in part) for parts in zip(*ranks, strict=True)]
    assert rest == [sorted(step) for step in whole[stop:]]


def test_the_state_counts_what_was_handed_out(data: str) -> None:
    loader = TokenLoader(data, **SETTINGS)
    for number, batch in enumerate(loader):
        assert (batch.step, batch.epoch) == (number, 0)
        if number < len(loader) - 1:
            assert loader.state_dict()["position"] == (number + 1) * 8
        assert loader.state_dict(after=batch) == loader.state_dict()
        assert loader.steps_left == len(loader) - number - 1
    # The end of an epoch is the start of the next.
    assert (loader.epoch, loader.state_dict()["position"]) == (1, 0)


@pytest.mark.parametrize("skip", [None, (2, 5), (30, 10_000)])
def test_the_state_after_a_batch_is_known_when_the_epoch_is_over(data: str, skip: tuple[int, int] | None) -> None:
    loader = TokenLoader(data, **SETTINGS)
    if skip:
        loader.skip(*skip)
    batches, states = [], []
    for batch in loader:
        batches.append(batch)
        states.append(loader.state_dict(after=batch))
    # The epoch is over: where a trainer goes on after its last step is the start of the next.
    states[-1] = loader.state_dict()
    assert [loader.state_dict(after=batch) for batch in batches] == states
    second = next(iter(loader))
    assert [loader.state_dict(after=batch) for batch in batches] == states
    resumed = TokenLoader(data, **SETTINGS)
    resumed.load_state_dict(loader.state_dict(after=batches[-1]))
    assert torch.equal(next(iter(resumed))["input_ids"], second["input_ids"])


def test_epochs(data: str) -> None:
    loader = TokenLoader(data, **SETTINGS)
    first, second = steps(loader), steps(loader)
    assert first != second, "another epoch, another order"
    loader.set_epoch(0)
    assert steps(loader) == first
    assert loader.epoch == 1
    next(iter(loader))
    loader.set_epoch(1)
    assert steps(loader) == second[1:], "within an epoch the position stays"


def test_a_loop_after_one_that_stopped_at_the_last_step_is_the_next_epoch(data: str) -> None:
    loader = TokenLoader(data, **SETTINGS)
    for epoch in range(3):
        taken = [(batch.epoch, batch.step) for batch, _ in zip(loader, range(len(loader)), strict=False)]
        assert taken == [(epoch, step) for step in range(len(loader))]
    for epoch in range(3, 5):
        # An iterator that is never asked for more than there is.
        iterator = iter(loader)
        assert [next(iterator).epoch for _ in range(len(loader))] == [epoch] * len(loader)
    saved = loader.state_dict()
    loader.load_state_dict(saved)
    assert list(loader) == [], "the loop in which it was saved is over"
    assert next(iter(loader)).epoch == 5


def test_skipped_steps_are_left_out_and_explained_ones_are_named(data: str, rows: list[list[int]]) -> None:
    whole = steps(TokenLoader(data, **SETTINGS))
    loader = TokenLoader(data, **SETTINGS)
    loader.skip(2, 5)
    assert steps(loader) == whole[:2] + whole[5:]
    loader.set_epoch(0)
    with pytest.raises(ValueError, match="step 1000000"):
        loader.explain(1_000_000)
    origin = TokenLoader(data, **SETTINGS).explain(3)
    by_file: dict[str, list[list[int]]] = {f"part-{file:03}.parquet": rows[60 * file : 60 * file + 60] for file in range(5)}
    for sequence, ids in zip(origin["sequences"], whole[3], strict=True):
        found: list[int] = []
        for part in sequence["parts"]:
            group = [token for row in by_file[part["file"]][16 * part["row_group"] :][:16] for token in row]
            found += group[slice(*part["tokens"])]
        assert found == ids


def test_statistics_are_measured(data: str, rows: list[list[int]]) -> None:
    loader = TokenLoader(data, **SETTINGS)
    assert loader.stats()["batches"] == 0
    steps(loader)
    stats = loader.stats()
    assert stats["batches"] == len(loader)
    assert stats["tokens"] == sum(map(len, rows))
    assert stats["bytes_read"] > 0 and stats["tokens_per_second"] > 0 and 0 <= stats["stalled_s"] <= stats["elapsed_s"]


def test_what_is_wrong_is_named(data: str, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere"):
        TokenLoader(tmp_path / "nowhere", **SETTINGS)
    with pytest.raises(FileNotFoundError, match=r"no \.parquet files"):
        TokenLoader(tmp_path, **SETTINGS)
    with pytest.raises(ValueError, match="unknown tail"):
        TokenLoader(data, **SETTINGS, tail="shrug")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="give both"):
        TokenLoader(data, **SETTINGS, rank=1)
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 and nothing else")
    with pytest.raises(ShardfeedError, match=r"broken\.parquet") as caught:
        TokenLoader(tmp_path, **SETTINGS)
    again = pickle.loads(pickle.dumps(caught.value))
    assert (type(again), str(again)) == (ShardfeedError, str(caught.value))
    state = TokenLoader(data, **SETTINGS).state_dict()
    with pytest.raises(ShardfeedError, match="seed"):
        TokenLoader(data, seq_len=32, global_batch=8, seed=8).load_state_dict(state)
    with pytest.raises(ShardfeedError):
        TokenLoader(data, **SETTINGS).load_state_dict({**state, "position": state["position"] + 1})
    with pytest.raises(ValueError, match="memory budget"):
        TokenLoader(data, **SETTINGS, memory_budget=1)


def test_the_environment_says_which_rank(data: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(ValueError, match="WORLD_SIZE=None"):
        TokenLoader(data, **SETTINGS)
    monkeypatch.setenv("WORLD_SIZE", "2")
    loader = TokenLoader(data, **SETTINGS)
    assert (loader.rank, loader.world_size) == (1, 2)
    assert TokenLoader(data, **SETTINGS, rank=0, world_size=4).world_size == 4, "what is given counts"
    monkeypatch.setenv("RANK", "2")
    with pytest.raises(ValueError, match="rank 2"):
        TokenLoader(data, **SETTINGS)


def test_a_process_group_says_which_rank(data: str, tmp_path: Path) -> None:
    """Of two processes that were started in some other way than by torchrun, which tells by variables."""
    script = """
import pickle, sys, torch.distributed
from shardfeed import TokenLoader
from shardfeed.torch import TokenDataset
arguments = {"source": sys.argv[1], "seq_len": 32, "global_batch": 8}
early, whole = TokenLoader(**arguments), TokenLoader(**arguments, rank=0, world_size=1)
dataset = TokenDataset(**arguments)
torch.distributed.init_process_group("gloo", init_method=f"file://{sys.argv[2]}", rank=int(sys.argv[3]), world_size=2)
loader = TokenLoader(**arguments)
print(loader.rank, loader.world_size)
# One that took itself for the only one does not give each rank all of the data, unless it was told to.
copy = pickle.loads(pickle.dumps(early))
for ask in (lambda: next(iter(early)), lambda: next(iter(copy)), lambda: next(iter(dataset)), lambda: pickle.dumps(dataset)):
    try:
        ask()
    except RuntimeError as error:
        print(error)
assert len(next(iter(whole))["input_ids"]) == 8 and len(next(iter(loader))["input_ids"]) == 4
# Nobody leaves before everybody has come.
torch.distributed.barrier()
torch.distributed.destroy_process_group()
"""
    commands = [[sys.executable, "-c", script, data, str(tmp_path / "store"), str(rank)] for rank in range(2)]
    ranks = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for command in commands]
    for number, rank in enumerate(ranks):
        said = rank.communicate(timeout=60)[0].splitlines()
        assert rank.returncode == 0 and said[0] == f"{number} 2"
        assert len(said) == 5 and all(f"torch.distributed says {number} of 2; make it after" in line for line in said[1:])


def test_a_glob_and_a_list_are_sources_too(data: str) -> None:
    whole = steps(TokenLoader(data, **SETTINGS))
    assert steps(TokenLoader(f"{data}/*.parquet", **SETTINGS)) == whole
    assert steps(TokenLoader(sorted(Path(data).glob("*.parquet")), **SETTINGS)) == whole


def test_scanning_tells_how_far_it_is(data: str) -> None:
    calls: list[tuple[int, int]] = []
    TokenLoader(data, **SETTINGS, cache="off", progress=lambda done, total: calls.append((done, total)))
    assert calls[-1] == (5, 5) and len(calls) == 5

    def refuse(done: int, total: int) -> None:
        raise LookupError("enough")

    with pytest.raises(LookupError, match="enough"):
        TokenLoader(data, **SETTINGS, cache="off", progress=refuse)


def test_importing_needs_nothing_else() -> None:
    script = "import sys, shardfeed; print([name for name in ('torch', 'numpy', 'pyarrow') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    assert shardfeed.__version__


@pytest.mark.parametrize(
    ("name", "number", "least"),
    [("seq_len", -1, 1), ("seq_len", 0, 1), ("global_batch", 0, 1), ("global_batch", -1, 1), ("seed", -1, 0), ("seed", 2**64, 0)],
)
def test_a_number_that_cannot_be_is_refused_by_name(data: str, name: str, number: int, least: int) -> None:
    with pytest.raises(ValueError, match=rf"{name} is {number}; it is at least {least}, and less than 2\*\*"):
        TokenLoader(data, **{"seq_len": 32, "global_batch": 8, name: number})


def test_an_epoch_that_cannot_be_is_refused_by_name(data: str) -> None:
    loader = TokenLoader(data, seq_len=32, global_batch=8)
    with pytest.raises(ValueError, match="epoch is -1; it is at least 0"):
        loader.set_epoch(-1)


@pytest.mark.parametrize("name", ["rank", "world_size", "threads", "lanes", "window", "eos_id", "pad_id", "memory_budget"])
@pytest.mark.parametrize("number", [-1, 2**64])
def test_numbers_out_of_range_are_refused_by_name(data: str, name: str, number: int) -> None:
    ranks = {"rank": 0, "world_size": 1} if name in ("rank", "world_size") else {}
    with pytest.raises(ValueError, match=f"^{name} is {number}; it is at least [01], and less than 2"):
        TokenLoader(data, **SETTINGS, **{**ranks, name: number})


def test_steps_out_of_range_are_refused_by_name(data: str) -> None:
    loader = TokenLoader(data, **SETTINGS)
    with pytest.raises(ValueError, match="^start is -1; it is at least 0"):
        loader.skip(-1, 3)
    for start in (3, 5):
        with pytest.raises(ValueError, match=f"^stop is 3 and start is {start}; .* stop is larger$"):
            loader.skip(start, 3)
    with pytest.raises(ValueError, match="^step is -1; it is at least 0"):
        loader.explain(-1)


@pytest.mark.parametrize(("error", "pin_memory"), [(RuntimeError, True), (KeyboardInterrupt, False), (MemoryError, False)])
def test_a_batch_that_cannot_be_made_is_handed_out_again(data: str, error: type[BaseException], pin_memory: bool) -> None:
    whole = steps(TokenLoader(data, **SETTINGS))
    loader = TokenLoader(data, **SETTINGS, pin_memory=pin_memory)
    make, calls = array_maker("torch"), 0

    def fail_at_times(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        # In the middle of a batch of four arrays, too.
        if calls in (1, 20, 35):
            raise error("CUDA error: out of memory")
        return make(*arguments)

    loader._make = fail_at_times
    taken: list[Any] = []
    for _ in range(3):
        before = loader.state_dict()
        with pytest.raises(error, match="out of memory"):
            for batch in loader:
                taken.append(batch["input_ids"].tolist())
                before = loader.state_dict()
        assert loader.state_dict() == before
    assert taken + steps(loader) == whole


class WithSignal:
    """A native loader that is sent a signal each time before it is asked for a batch."""

    def __init__(self, native: Any) -> None:
        self.native = native

    def __getattr__(self, name: str) -> Any:
        return getattr(self.native, name)

    def next_batch(self, taken: Any) -> Any:
        send = functools.partial(getattr(ctypes.CDLL(None), "raise"), signal.SIGINT)
        # Called without a step of Python's in between, where the signal would be heard too early.
        return list(map(operator.call, (send, functools.partial(self.native.next_batch, taken))))[1]


def test_a_batch_that_is_ready_when_a_signal_comes_is_handed_out_again(data: str) -> None:
    whole = steps(TokenLoader(data, **SETTINGS))
    loader = TokenLoader(data, **SETTINGS)
    native = loader._native_loader()
    iterator = iter(loader)
    taken = [next(iterator)["input_ids"].tolist() for _ in range(3)]
    for _ in range(3):
        loader._loader = WithSignal(native)  # type: ignore[assignment]
        with pytest.raises(KeyboardInterrupt):
            next(iter(loader))
        assert loader.stats()["batches"] > len(taken), "it was taken"
        loader._loader = native
        taken.append(next(iter(loader))["input_ids"].tolist())
    assert taken + steps(loader) == whole


def test_a_batch_is_not_put_back_where_somebody_went_on_after_it(data: str) -> None:
    whole = steps(TokenLoader(data, **SETTINGS))
    loader = TokenLoader(data, **SETTINGS)
    make, iterator = array_maker("torch"), iter(loader)
    of_another: list[Any] = []

    def fail_while_another_thread_takes_the_next(*arguments: Any) -> Any:
        loader._make = make
        another = threading.Thread(target=lambda: of_another.append(next(iter(loader))["input_ids"].tolist()))
        another.start()
        another.join()
        raise MemoryError

    taken = [next(iterator)["input_ids"].tolist()]
    loader._make = fail_while_another_thread_takes_the_next
    with pytest.raises(MemoryError):
        next(iterator)
    # The second one is nobody's; the third is not given twice.
    assert taken + whole[1:2] + of_another + steps(loader) == whole


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_batches_lie_in_pinned_memory_if_that_is_asked_for(data: str) -> None:
    pinned, plain = TokenLoader(data, **SETTINGS, arrays=[*ALL_ARRAYS], pin_memory=True), TokenLoader(data, **SETTINGS, arrays=[*ALL_ARRAYS])
    on_device = []
    for batch, expected in zip(pinned, plain, strict=True):
        assert set(batch) == set(expected) and all(value.is_pinned() for value in batch.values())
        on_device.append(({name: value.to("cuda", non_blocking=True) for name, value in batch.items()}, expected))
        # Its memory may be used for the next one: the copy comes first.
        del batch
    for moved, expected in on_device:
        assert all(torch.equal(moved[name].cpu(), expected[name]) for name in expected)
