"""The ring of buffers on the way to a device: with memory of this machine as the device, and with a GPU where there is one."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import os
import random
import re
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
import torch.distributed.checkpoint as dcp
from checkpoint_support import DTYPES, Halving, Outcome, bits, item_of, load_alone, load_with, save, some_tensor
from shardfeed import ShardfeedError
from shardfeed.checkpoint import Progress, Reader, _devices, _reader
from shardfeed.checkpoint._items import StoredPart, Wanted
from shardfeed.checkpoint._sources import NativePending, NativeSource, NativeThreads
from shardfeed.checkpoint._targets import Route
from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner

SHAPES = [(7,), (64, 33), (5, 4, 3, 2, 6), (), (1000, 3), (1, 4097), (3, 1, 700)]


class MemoryLane:
    """Memory in place of a device, which copies in order and as late as it may: a buffer that is filled again too early is seen."""

    def __init__(self, device: torch.device) -> None:
        self._late = collections.deque[Sequence[tuple[torch.Tensor, torch.Tensor]]]()
        self._begun = self._done = 0

    def buffer(self, size: int) -> torch.Tensor:
        return torch.full((size,), 0xEE, dtype=torch.uint8)

    def copy(self, pieces: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> Callable[[], None]:
        self._late.append(pieces)
        self._begun += 1
        return functools.partial(self._copy_up_to, self._begun)

    def finish(self) -> None:
        self._copy_up_to(self._begun)

    def _copy_up_to(self, number: int) -> None:
        while self._done < number:
            for target, staging in self._late.popleft():
                # Devices move anything, and turn numbers.
                assert target.is_contiguous() and staging.is_contiguous() or target.dtype in _devices._BITS.values()
                target.copy_(staging)
            self._done += 1


def tensors(seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    made = {}
    for number, shape in enumerate(SHAPES):
        for dtype in (torch.float32, torch.bfloat16, torch.int8):
            values = torch.randint(-100, 100, shape, generator=generator)
            made[f"t{number}.{dtype}"] = values.to(dtype)
    made["transposed"] = torch.arange(60.0).view(6, 10).t()
    made["turned"] = torch.arange(7200, dtype=torch.int32).view(20, 3, 12, 10).permute(2, 0, 3, 1)
    return made


def threads_that_read() -> int:
    count = 0
    for path in Path("/proc/self/task").glob("*/comm"):
        with contextlib.suppress(OSError):  # It may have ended since.
            count += path.read_text().strip() == "shardfeed-read"
    return count


def wait_until_threads_read(count: int) -> None:
    """They take their name by themselves, and end so, a moment after the last read."""
    end = time.monotonic() + 30
    while threads_that_read() != count:
        assert time.monotonic() < end, f"{threads_that_read()} threads, and not {count}"
        time.sleep(0.001)


def test_slabs_divide_a_part() -> None:
    dice = random.Random(3)
    for _ in range(300):
        sizes = tuple(dice.randint(1, 6) for _ in range(dice.randint(0, 4)))
        offsets = tuple(dice.randint(0, 3) for _ in sizes)
        chunk = tuple(offset + size + dice.randint(0, 2) for offset, size in zip(offsets, sizes, strict=True))
        part = StoredPart(torch.int32, tuple(0 for _ in sizes), chunk, offsets, sizes)
        wanted = Wanted(SimpleNamespace(storage_index=SimpleNamespace(fqn="t")), None, part)  # type: ignore[arg-type]
        target = torch.zeros(sizes, dtype=torch.int32)
        bytes_max = dice.randint(1, 200)
        for piece, place in _devices.slabs(wanted, target, bytes_max):
            assert piece.part is not None and piece.part.sizes == tuple(place.shape)
            assert piece.part.bytes <= bytes_max or piece.part.bytes == 4
            # Where in the target it is, by where in the chunk.
            at = tuple(own - first for own, first in zip(piece.part.offsets, offsets, strict=True))
            index = tuple(slice(first, first + size) for first, size in zip(at, piece.part.sizes, strict=True))
            assert target[index].data_ptr() == place.data_ptr() and target[index].shape == place.shape
            place += 1
        assert torch.equal(target, torch.ones_like(target)), "each element is in one piece"


def test_a_ring_has_no_more_threads_and_memory_than_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_devices, "checkpoint_memory_budget", lambda: 1 << 40)
    dice = random.Random(5)
    for _ in range(20_000):
        workers = dice.choice([None, 1, 2, dice.randint(1, 100)])
        budget = dice.choice([None, dice.randint(1, 100), dice.randint(1, 2000)])
        total = dice.choice([0, dice.randint(0, 100), 1 << 40])
        ring = _devices.ring_of(total, workers, budget, 10)
        assert 1 <= ring.threads <= ring.reads <= ring.buffers, "every read has a buffer, and every thread a read"
        assert ring.threads <= (workers or 12)
        if budget is not None:
            # Bytes that each thread holds besides its buffer. One needs a buffer and those.
            assert 10 * ring.buffers + 20 * ring.threads <= max(budget, 30)
        elif workers is not None and total >= 2000:
            assert ring.threads == workers
        assert total >= 100 or ring.threads <= 1 + total // 5, "no thread has nothing to do"


def test_a_ring_holds_no_more_than_there_is_if_nobody_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_devices, "checkpoint_memory_budget", lambda: 400)
    ring = _devices.ring_of(1 << 40, 100, None, 10)
    assert 10 * ring.buffers + 20 * ring.threads <= 400 and ring.threads > 8


@pytest.mark.parametrize(
    ("buffer_bytes", "ring"),
    [(64, (1, 1, 1)), (300, (1, 2, 1)), (300, (7, 9, 8)), (4096, (2, 3, 3)), (4096, (3, 12, 8)), (1 << 20, (16, 24, 20))],
)
def test_what_comes_through_the_ring_is_what_torch_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, buffer_bytes: int, ring: tuple[int, int, int]
) -> None:
    saved = tensors()
    save(saved, tmp_path, thread_count=3)
    monkeypatch.setattr(_reader, "CudaLane", MemoryLane)
    monkeypatch.setattr(_reader, "route_of", lambda target, part: Route.PINNED)
    monkeypatch.setattr(_reader, "BUFFER_BYTES", buffer_bytes)
    monkeypatch.setattr(_reader, "LOOK_BYTES", 100)
    monkeypatch.setattr(_reader, "ring_of", lambda *_: _devices.Ring(*ring))
    loaded = {name: torch.zeros_like(tensor) for name, tensor in saved.items()}
    stock = {name: torch.zeros_like(tensor) for name, tensor in saved.items()}
    for state in (loaded, stock):
        # One that is not dense, and some that share their memory: the last in torch's order stays.
        state["t1.torch.float32"] = torch.zeros(64, 66)[:, ::2]
        shared = torch.zeros(5000, dtype=torch.int8)
        state["t4.torch.int8"], state["t5.torch.int8"] = shared[:3000].view(1000, 3), shared[500:4597].view(1, 4097)
    told, finished = [], list[str]()

    def tell(progress: Progress) -> None:
        told.append((progress.bytes, progress.bytes_total))
        finished.extend(progress.finished)

    reader = Reader(tmp_path, progress=tell)
    load_alone(reader, loaded)
    load_alone(FileSystemReader(tmp_path), stock)
    for name, tensor in stock.items():
        assert torch.equal(loaded[name], tensor), name
    assert (reader.staged, reader.fallbacks) == (0, 0)
    total = sum(tensor.nbytes for tensor in saved.values())
    assert told[-1] == (total, total) and told == sorted(told)
    assert sorted(finished) == sorted(saved), "each name once, with its last piece"


@pytest.mark.parametrize(
    ("options", "parallel", "threads"),
    [
        ({"use_parallel": False}, None, 1),
        ({"num_workers": 1}, None, 1),
        ({"num_workers": 6}, None, 6),
        ({"num_workers": 20}, None, 20),
        ({"use_parallel": False}, 4, 4),
        ({"num_workers": 8}, 2, 2),
        ({"num_workers": 8, "memory_budget": 3 * 4096}, None, 1),
        ({"num_workers": 8, "memory_budget": 9 * 4096}, None, 2),
    ],
    ids=str,
)
def test_no_more_threads_read_than_were_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], parallel: int | None, threads: int
) -> None:
    # The first in pieces; of the others several go into one buffer.
    saved = {"a": torch.randn(1000, 64), **{f"b{number}": torch.randn(100) for number in range(40)}}
    save(saved, tmp_path)
    monkeypatch.setattr(_reader, "CudaLane", MemoryLane)
    monkeypatch.setattr(_reader, "route_of", lambda target, part: Route.PINNED)
    monkeypatch.setattr(_reader, "BUFFER_BYTES", 4096)
    asked, seen, start = list[int](), list[int](), NativeThreads.start
    make = NativeSource.threads

    def noting_threads(self: NativeSource, wanted: Iterable[Wanted], num_workers: int) -> NativeThreads:
        asked.append(num_workers)
        return make(self, wanted, num_workers)

    def noting_start(self: NativeThreads, fetches: Sequence[Any]) -> NativePending:
        if not seen:
            wait_until_threads_read(threads)
        seen.append(threads_that_read())
        return start(self, fetches)

    monkeypatch.setattr(NativeSource, "threads", noting_threads)
    monkeypatch.setattr(NativeThreads, "start", noting_start)
    wait_until_threads_read(0)
    reader, planner = Reader(tmp_path, **options), DefaultLoadPlanner()
    state = {name: torch.zeros_like(tensor) for name, tensor in saved.items()}
    metadata = reader.read_metadata()
    planner.set_up_planner(state, metadata, True)
    reader.set_up_storage_reader(metadata, True)
    plan = planner.create_local_plan()
    if parallel is None:
        reader.read_data(plan, planner)
    else:
        reader.read_data_parallel(plan, planner, parallel)
    assert all(torch.equal(state[name], saved[name]) for name in saved)
    assert asked == [threads] and set(seen) == {threads}, "they stay from the first read to the last"
    wait_until_threads_read(0)


@pytest.mark.parametrize(
    ("options", "staged"), [({}, 0), ({"verify": True}, 0), ({"use_parallel": False}, 1), ({"verify": True, "use_parallel": False}, 1)], ids=str
)
def test_an_item_that_is_read_as_a_whole_is_so_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], staged: int
) -> None:
    saved = {"large": torch.randn(1000, 64), "small": torch.randn(100)}
    save(saved, tmp_path)
    monkeypatch.setattr(_reader, "CudaLane", MemoryLane)
    monkeypatch.setattr(_reader, "route_of", lambda target, part: Route.PINNED)
    monkeypatch.setattr(_reader, "BUFFER_BYTES", 4096)
    reads, start, start_on_threads = list[str](), NativeSource.start, NativeThreads.start

    def noting_start(self: NativeSource, fetches: Sequence[Any]) -> NativePending:
        reads.extend({wanted.name for wanted, _ in fetches})
        return start(self, fetches)

    def noting_start_on_threads(self: NativeThreads, fetches: Sequence[Any]) -> NativePending:
        reads.extend({wanted.name for wanted, _ in fetches})
        return start_on_threads(self, fetches)

    monkeypatch.setattr(NativeSource, "start", noting_start)
    monkeypatch.setattr(NativeThreads, "start", noting_start_on_threads)
    reader, state = Reader(tmp_path, **options), {name: torch.zeros_like(tensor) for name, tensor in saved.items()}
    load_alone(reader, state)
    assert all(torch.equal(state[name], saved[name]) for name in saved)
    assert reader.staged == staged and reads.count("small") == 1
    assert (reads.count("large") == 1) == (staged == 1), "it is larger than a buffer"


@pytest.mark.parametrize("name", ["small", "large", "turned", "partly"])
def test_a_flipped_byte_is_found_in_whatever_goes_through_the_ring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    saved = {
        "small": torch.randn(100),
        "large": torch.randn(1000, 64),
        "turned": torch.randn(90, 700).t(),
        "partly": torch.randn(500, 200),
    }
    save(saved, tmp_path, thread_count=2)
    monkeypatch.setattr(_reader, "CudaLane", MemoryLane)
    monkeypatch.setattr(_reader, "route_of", lambda target, part: Route.PINNED)
    monkeypatch.setattr(_reader, "BUFFER_BYTES", 10_000)

    def load(**options: Any) -> None:
        state = {name: torch.zeros_like(tensor) for name, tensor in saved.items()}
        reader, planner = Reader(tmp_path, num_workers=3, **options), DefaultLoadPlanner()
        metadata = reader.read_metadata()
        planner.set_up_planner(state, metadata, True)
        reader.set_up_storage_reader(metadata, True)
        plan = planner.create_local_plan()
        # Some rows of one of them, none of which has the byte.
        rows = {"lengths": torch.Size([100, 200]), "dest_offsets": torch.Size([0, 0]), "storage_offsets": torch.Size([10, 0])}
        items = [dataclasses.replace(item, **rows) if item.storage_index.fqn == "partly" else item for item in plan.items]
        reader.read_data(dataclasses.replace(plan, items=items), planner)
        assert (reader.staged, reader.fallbacks) == (0, 0)
        assert torch.equal(state["partly"][:100], saved["partly"][10:110])

    load(verify=True)
    info = item_of(tmp_path, name)
    file = tmp_path / info.relative_path
    data = bytearray(file.read_bytes())
    # Near the end, where the last piece is.
    data[data.rindex(saved[name].flatten()[-1:].numpy().tobytes(), info.offset, info.offset + info.length)] ^= 1
    file.write_bytes(data)
    load()
    with pytest.raises(ShardfeedError, match=f"{file}: {name} at byte {info.offset}: its bytes have the checksum"):
        load(verify=True)


def test_links_are_followed_on_request_on_the_way_to_a_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved = tensors()
    save(saved, tmp_path / "elsewhere", thread_count=2)
    linked = tmp_path / "linked"
    linked.mkdir()
    for path in (tmp_path / "elsewhere").iterdir():
        (linked / path.name).symlink_to(path)
    monkeypatch.setattr(_reader, "CudaLane", MemoryLane)
    monkeypatch.setattr(_reader, "route_of", lambda target, part: Route.PINNED)
    state = {name: torch.zeros_like(tensor) for name, tensor in saved.items()}
    reader = Reader(linked, follow_links=True)
    load_alone(reader, state)
    assert all(torch.equal(state[name], saved[name]) for name in saved) and reader.staged == 0
    # A link among the files alone: where `.metadata` is one, nobody gets that far.
    (linked / ".metadata").unlink()
    (linked / ".metadata").write_bytes((tmp_path / "elsewhere" / ".metadata").read_bytes())
    with pytest.raises(ShardfeedError, match="link"):
        raise cause_of(load_with(Reader(linked), state))


@pytest.mark.parametrize("turned", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_no_byte_is_read_twice_however_an_item_lies_in_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, turned: tuple[int, int, int]
) -> None:
    saved = {"w": torch.randn(40, 50, 60).permute(turned)}
    save(saved, tmp_path)
    monkeypatch.setattr(_reader, "CudaLane", MemoryLane)
    monkeypatch.setattr(_reader, "route_of", lambda target, part: Route.PINNED)
    monkeypatch.setattr(_reader, "BUFFER_BYTES", 10_000)
    monkeypatch.setattr(_reader, "LOOK_BYTES", 10_000)
    bytes_read, reads = 0, 0

    def noting_wait(self: NativePending, progress: Any) -> list[bytes]:
        nonlocal bytes_read, reads
        items, done = self._read.wait(progress)
        bytes_read, reads = bytes_read + done["bytes_read"], reads + 1
        return items

    monkeypatch.setattr(NativePending, "wait", noting_wait)
    # All of it, and a part that is narrower in every dimension.
    for narrow in (slice(None), slice(5, -5)):
        state = {"w": torch.zeros(saved["w"].shape)}
        reader, planner = Reader(tmp_path), DefaultLoadPlanner()
        metadata = reader.read_metadata()
        planner.set_up_planner(state, metadata, True)
        reader.set_up_storage_reader(metadata, True)
        plan = planner.create_local_plan()
        [item] = plan.items
        place = saved["w"][narrow, narrow, narrow]
        offsets = torch.Size([narrow.start or 0] * 3)
        part = dataclasses.replace(item, dest_offsets=offsets, storage_offsets=offsets, lengths=place.shape)
        bytes_read, reads = 0, 0
        reader.read_data(dataclasses.replace(plan, items=[part]), planner)
        assert torch.equal(state["w"][narrow, narrow, narrow], place)
        assert reads > 20, "in pieces"
        # Besides the elements, where they lie: some kilobytes for each piece.
        assert bytes_read < saved["w"].nbytes + 4000 * reads, f"{bytes_read} bytes of {saved['w'].nbytes}"


@pytest.mark.parametrize("staged", ["a", "b", "c"])
def test_tied_destinations_of_which_one_is_staged_keep_torchs_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, staged: str
) -> None:
    saved = {name: torch.full((50,), float(index)) for index, name in enumerate("abcd")}
    save(saved, tmp_path)

    def tied() -> dict[str, torch.Tensor]:
        memory = torch.zeros(50)
        made = {"a": memory, "b": memory, "c": memory, "d": torch.zeros(50)}
        return {**made, staged: memory.view(torch.int32)}

    monkeypatch.setattr(_reader, "CudaLane", MemoryLane)
    monkeypatch.setattr(_reader, "route_of", lambda target, part: Route.PINNED if target.dtype is part.dtype else Route.STAGED)
    loaded, stock = tied(), tied()
    reader = Reader(tmp_path)
    load_alone(reader, loaded)
    load_alone(FileSystemReader(tmp_path), stock)
    assert all(torch.equal(loaded[name], stock[name]) for name in stock)
    assert reader.staged == 3, "what shares no memory goes straight"


def some_target(shape: torch.Size, dtype: torch.dtype, dice: random.Random) -> torch.Tensor:
    """Dense, with other dimensions first, or with room between all elements."""
    way = dice.randrange(3)
    if way == 0 or not shape:
        return torch.zeros(shape, dtype=dtype)
    if way == 1:
        order = dice.sample(range(len(shape)), len(shape))
        made = torch.zeros([shape[dim] for dim in order], dtype=dtype)
        return made.permute([order.index(dim) for dim in range(len(shape))])
    return torch.zeros([2 * size + 1 for size in shape], dtype=dtype)[tuple(slice(1, None, 2) for _ in shape)]


@pytest.mark.parametrize("seed", range(40))
def test_random_loads_through_random_rings_are_what_torch_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    dice = random.Random(seed)
    saved = {}
    for number in range(dice.randint(1, 12)):
        shape = tuple(dice.choice([1, 1, 2, 3, 5, 7, 16]) for _ in range(dice.randint(0, 4)))
        order = dice.sample(range(len(shape)), len(shape))
        saved[f"t{number}"] = some_tensor(dice.choice(DTYPES), shape, number).permute(order)
    save(saved, tmp_path, thread_count=dice.randint(1, 4))
    threads = dice.randint(1, 8)
    reads = threads + dice.randint(0, 4)
    ring = _devices.Ring(threads, reads + dice.randint(0, 4), reads)
    monkeypatch.setattr(_reader, "CudaLane", MemoryLane)
    monkeypatch.setattr(_reader, "route_of", lambda target, part: Route.TORCH if part is None else Route.PINNED)
    monkeypatch.setattr(_reader, "BUFFER_BYTES", dice.choice([16, 64, 300, 4096, 1 << 20]))
    monkeypatch.setattr(_reader, "LOOK_BYTES", dice.choice([1, 100, 1 << 20]))
    monkeypatch.setattr(_reader, "ring_of", lambda *_: ring)
    loaded = {name: some_target(tensor.shape, tensor.dtype, dice) for name, tensor in saved.items()}
    load_alone(Reader(tmp_path, verify=dice.random() < 0.3, use_parallel=dice.random() < 0.8), loaded)
    assert all(bits(loaded[name]) == bits(tensor) for name, tensor in saved.items())


def cause_of(outcome: Outcome) -> BaseException:
    """What one rank raised, which torch wraps."""
    assert outcome.error is not None
    [[cause, _]] = getattr(outcome.error, "failures", {0: (outcome.error, None)}).values()
    return cast(BaseException, cause)


def remove_files(directory: Path) -> None:
    for file in directory.glob("*.distcp"):
        file.unlink()


def change_files(directory: Path) -> None:
    for file in directory.glob("*.distcp"):
        os.utime(file, (1, 1))


@pytest.mark.parametrize("ring", [(1, 1, 1), (3, 5, 3), (8, 16, 12)], ids=str)
@pytest.mark.parametrize(
    ("happens", "error", "message"), [(remove_files, FileNotFoundError, "distcp"), (change_files, ShardfeedError, "distcp.*changed after")]
)
def test_a_read_that_fails_in_the_middle_is_told_and_leaves_no_thread(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    ring: tuple[int, int, int],
    happens: Callable[[Path], None],
    error: type[Exception],
    message: str,
) -> None:
    saved = {f"t{number}": torch.randn(1000) for number in range(60)}
    save(saved, tmp_path, thread_count=4)
    monkeypatch.setattr(_reader, "CudaLane", MemoryLane)
    monkeypatch.setattr(_reader, "route_of", lambda target, part: Route.PINNED)
    monkeypatch.setattr(_reader, "BUFFER_BYTES", 4096)
    monkeypatch.setattr(_reader, "ring_of", lambda *_: _devices.Ring(*ring))
    start, started = NativeThreads.start, 0

    def start_until_it_happens(self: NativeThreads, fetches: Sequence[Any]) -> NativePending:
        nonlocal started
        started += 1
        if started == 20:
            happens(tmp_path)
        return start(self, fetches)

    monkeypatch.setattr(NativeThreads, "start", start_until_it_happens)
    outcome = load_with(Reader(tmp_path), {name: torch.zeros_like(tensor) for name, tensor in saved.items()})
    cause = cause_of(outcome)
    assert started >= 20 and isinstance(cause, error) and re.search(message, str(cause)), cause
    wait_until_threads_read(0)


def test_items_of_another_type_than_the_metadata_say_come_another_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved = {f"{kind}{number}": torch.randn(500 * (1 + number), 3) for number in range(4) for kind in ("kept", "halved")}
    dcp.save(saved, storage_writer=FileSystemWriter(tmp_path), planner=Halving())
    monkeypatch.setattr(_reader, "CudaLane", MemoryLane)
    monkeypatch.setattr(_reader, "route_of", lambda target, part: Route.TORCH if part is None else Route.PINNED)
    monkeypatch.setattr(_reader, "BUFFER_BYTES", 4096)
    loaded = {name: torch.zeros_like(tensor) for name, tensor in saved.items()}
    reader = Reader(tmp_path)
    load_alone(reader, loaded)
    assert all(torch.equal(loaded[name], tensor.half().float() if "halved" in name else tensor) for name, tensor in saved.items())
    assert reader.fallbacks >= 4, "those at least"


@pytest.mark.parametrize("ring", [(1, 1, 1), (8, 16, 12)], ids=str)
def test_a_file_that_is_cut_short_or_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ring: tuple[int, int, int]) -> None:
    saved = tensors()
    save(saved, tmp_path)
    file = next(tmp_path.glob("*.distcp"))
    file.write_bytes(file.read_bytes()[:-5000])
    monkeypatch.setattr(_reader, "CudaLane", MemoryLane)
    monkeypatch.setattr(_reader, "route_of", lambda target, part: Route.PINNED)
    monkeypatch.setattr(_reader, "BUFFER_BYTES", 512)
    monkeypatch.setattr(_reader, "ring_of", lambda *_: _devices.Ring(*ring))
    state = {name: torch.zeros_like(tensor) for name, tensor in saved.items()}
    error = cause_of(load_with(Reader(tmp_path), state))
    assert isinstance(error, ShardfeedError) and file.name in str(error)
    file.unlink()
    error = cause_of(load_with(Reader(tmp_path), state))
    assert isinstance(error, FileNotFoundError) and file.name in str(error)


def test_a_signal_while_a_copy_begins_leaves_the_callers_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a GPU: streams are names, and the signal comes right after one was set."""
    own, callers = "own", "callers"
    current, interrupts = [callers], [True]

    def set_stream(stream: str) -> None:
        current.append(stream)
        if stream == own and interrupts.pop():
            raise KeyboardInterrupt

    stream = SimpleNamespace(synchronize=lambda: None, wait_stream=lambda other: None)
    lane = object.__new__(_devices.CudaLane)
    lane._device, lane._stream, lane._before = torch.device("cpu"), cast(Any, own), cast(Any, [callers])
    monkeypatch.setattr(torch.cuda, "set_stream", set_stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
    with pytest.raises(KeyboardInterrupt):
        lane.copy([])
    assert current[-1] == callers
    # And between two operations.
    current.append(own)
    lane._stream = cast(Any, stream)
    lane.finish()
    assert current[-1] == callers


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_cuda_tensors_are_what_torch_reads_whatever_stream_is_in_use(tmp_path: Path) -> None:
    saved = {name: tensor.cuda() for name, tensor in tensors().items()}
    saved["large"] = torch.randint(-100, 100, (3, 50_000_000), dtype=torch.int8, device="cuda")
    saved["large and turned"] = torch.randint(-100, 100, (70, 500, 800), dtype=torch.int8, device="cuda").permute(2, 0, 1)
    save(saved, tmp_path, thread_count=2)
    stock = {name: torch.zeros_like(tensor) for name, tensor in saved.items()}
    load_alone(FileSystemReader(tmp_path), stock)
    for stream in (torch.cuda.default_stream(), torch.cuda.Stream()):
        with torch.cuda.stream(stream):
            loaded = {name: torch.zeros_like(tensor) for name, tensor in saved.items()}
            wide = torch.zeros(64, 66, device="cuda")
            loaded["t1.torch.float32"] = wide[:, ::2]
            # Work that is under way when the load begins must not come after it.
            for tensor in loaded.values():
                tensor.copy_((tensor.double() - 5).to(tensor.dtype))
            reader = Reader(tmp_path)
            load_alone(reader, loaded)
            assert torch.cuda.current_stream() == stream
            doubled = {name: tensor + tensor for name, tensor in loaded.items()}
        for name, tensor in stock.items():
            assert torch.equal(loaded[name].cpu(), tensor.cpu()), name
            assert torch.equal(doubled[name].cpu(), (tensor + tensor).cpu()), name
        assert (reader.staged, reader.fallbacks) == (0, 0)
        assert not wide[:, 1::2].any(), "nothing is written in between"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_gpu_turns_tensors_of_every_type(tmp_path: Path, dtype: torch.dtype) -> None:
    saved = {"turned": some_tensor(dtype, (500, 800, 7)).permute(2, 0, 1), "sliced": some_tensor(dtype, (400, 500), 1)}
    save(saved, tmp_path)

    def zeros(*shape: int) -> torch.Tensor:
        return torch.zeros((*shape[:-1], shape[-1] * dtype.itemsize), dtype=torch.uint8, device="cuda").view(dtype)

    loaded = {"turned": zeros(7, 500, 800), "sliced": zeros(400, 1000)[:, ::2]}
    reader = Reader(tmp_path)
    load_alone(reader, loaded)
    # As bytes: what else a GPU can do with a type is not the question.
    numbers = _devices._BITS[dtype.itemsize]
    assert all(bits(loaded[name].view(numbers)) == bits(tensor) for name, tensor in saved.items())
    assert (reader.staged, reader.fallbacks) == (0, 0)
