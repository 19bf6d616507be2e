"""The ring of buffers on the way to a device: with memory of this machine as the device, and with a GPU where there is one."""

from __future__ import annotations

import contextlib
import dataclasses
import random
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from checkpoint_support import load_alone, save
from shardfeed.checkpoint import Progress, Reader, _devices, _reader
from shardfeed.checkpoint._items import StoredPart, Wanted
from shardfeed.checkpoint._sources import NativePending, NativeSource, NativeThreads
from shardfeed.checkpoint._targets import Route
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner

SHAPES = [(7,), (64, 33), (5, 4, 3, 2, 6), (), (1000, 3), (1, 4097), (3, 1, 700)]


class MemoryLane:
    """Copies at once, and keeps count of what a buffer is used for before its copies are waited for."""

    def __init__(self, device: torch.device) -> None:
        self.waited = 0

    def buffer(self, size: int) -> torch.Tensor:
        return torch.empty(size, dtype=torch.uint8)

    def copy(self, pieces: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> Callable[[], None]:
        for target, staging in pieces:
            target.copy_(staging)

        def wait() -> None:
            self.waited += 1

        return wait

    def finish(self) -> None:
        pass


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


def test_a_ring_has_no_more_threads_and_memory_than_it_may() -> None:
    dice = random.Random(5)
    for _ in range(20_000):
        workers = dice.choice([None, 1, 2, dice.randint(1, 100)])
        budget = dice.choice([None, dice.randint(1, 100), dice.randint(1, 2000)])
        total = dice.choice([0, dice.randint(0, 100), 1 << 40])
        ring = _devices.ring_of(total, workers, budget, 10)
        assert 1 <= ring.threads <= ring.reads <= ring.buffers, "every read has a buffer, and every thread a read"
        assert ring.threads <= (workers or 12)
        if budget is not None:
            # Bytes that each thread holds besides its buffer.
            assert (ring.threads, ring.buffers) == (1, 1) or 10 * ring.buffers + 20 * ring.threads <= budget
        elif workers is not None and total >= 2000:
            assert ring.threads == workers
        assert total >= 100 or ring.threads <= 1 + total // 5, "no thread has nothing to do"


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
    # One that is not dense, and one that shares its memory with another: the last in torch's order stays.
    loaded["t1.torch.float32"] = torch.zeros(64, 66)[:, ::2]
    stock = {name: torch.zeros_like(tensor) for name, tensor in saved.items()}
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
    ("options", "staged"), [({}, 0), ({"verify": True}, 1), ({"use_parallel": False}, 1), ({"verify": True, "use_parallel": False}, 1)], ids=str
)
def test_an_item_that_is_read_or_compared_as_a_whole_is_so_once(
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


def test_a_file_that_is_cut_short_is_named_and_nothing_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved = tensors()
    save(saved, tmp_path)
    file = next(tmp_path.glob("*.distcp"))
    file.write_bytes(file.read_bytes()[:-5000])
    monkeypatch.setattr(_reader, "CudaLane", MemoryLane)
    monkeypatch.setattr(_reader, "route_of", lambda target, part: Route.PINNED)
    monkeypatch.setattr(_reader, "BUFFER_BYTES", 512)
    with pytest.raises(BaseException, match=file.name):  # noqa: B017, PT011
        load_alone(Reader(tmp_path), {name: torch.zeros_like(tensor) for name, tensor in saved.items()})


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
            doubled = {name: tensor + tensor for name, tensor in loaded.items()}
        for name, tensor in stock.items():
            assert torch.equal(loaded[name].cpu(), tensor.cpu()), name
            assert torch.equal(doubled[name].cpu(), (tensor + tensor).cpu()), name
        assert (reader.staged, reader.fallbacks) == (0, 0)
        assert not wide[:, 1::2].any(), "nothing is written in between"
