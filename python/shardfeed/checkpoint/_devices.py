"""On the way to a device: a ring of pinned buffers that native threads fill while a stream of its own empties them."""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

import torch

from shardfeed._native import checkpoint_memory_budget
from shardfeed.checkpoint._items import Wanted
from shardfeed.checkpoint._sources import Pending
from shardfeed.checkpoint._workers import default_read_workers

# A part of an item, and where it goes.
Piece = tuple[Wanted, torch.Tensor]

# Bytes of a buffer, which one thread fills. All of them together have to stay in the processor's cache, so that the device takes bytes from
# there: otherwise each crosses the memory once more. Smaller ones cost more of what Python does for each.
BUFFER_BYTES = 8 << 20

# Bytes from which somebody looks how an item lies in its file before it is cut into pieces. It takes as long as some ten thousand more.
LOOK_BYTES = 1 << 20

# Threads, if nobody says how many: at most as many as fill buffers faster than a device empties them, and fewer than there are cores: the
# thread that begins copies would have to wait for one. Few cores have some more, since those that wait for a disk need none.
_THREADS_MIN = 4
_THREADS_MAX = 12


def _default_threads() -> int:
    cores = default_read_workers() // 2
    return max(_THREADS_MIN, min(cores * 3 // 4, _THREADS_MAX))


# Buffers that are not being filled: being emptied, waiting for it, or waiting for a thread.
_SPARE = 8

# Of those, the ones being emptied at most.
_EMPTIED = 4


@dataclasses.dataclass(frozen=True)
class Ring:
    """So many threads, buffers, and reads that are under way or wait for a thread."""

    threads: int
    buffers: int
    reads: int


def ring_of(bytes_total: int, workers: int | None, memory_budget: int | None, buffer_bytes: int) -> Ring:
    """How large a ring is that brings so much, has at most so many threads and holds at most so many bytes, or what one thread needs.

    A thread may hold two more than the buffer that it fills: one on the way from the disk, and one of what lies between rows. If nobody says
    how many bytes, it is as many as other reads hold: most of what is available.
    """
    # What is in a buffer had no room in the one before. Smaller things than where parts begin take more of it; there, threads are as good as idle.
    fills = 1 + 2 * bytes_total // buffer_bytes
    threads = min(workers or _default_threads(), fills)
    room = (checkpoint_memory_budget() if memory_budget is None else memory_budget) // buffer_bytes
    threads = max(1, min(threads, room // 3))
    buffers = max(1, min(threads + _SPARE, room - 2 * threads))
    reads = buffers - min(_EMPTIED, buffers // 2)
    return Ring(min(threads, reads), buffers, reads)


# Types that have as many bytes as an element.
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}

# Where parts begin in a buffer: as tensors do.
_ALIGNMENT = 64


class Lane(Protocol):
    """How what is in a buffer comes to one device."""

    def buffer(self, size: int) -> torch.Tensor:
        """Memory that it can be copied from."""
        ...

    def copy(self, pieces: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> Callable[[], None]:
        """Begins to copy, after everything that was begun before; what is returned waits for the end of it."""
        ...

    def finish(self) -> None:
        """Everything is there, for whatever comes next on any stream."""
        ...


class CudaLane:
    """A stream of its own. It begins after what is under way on the caller's stream, and the caller's stream goes on after it."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._stream.wait_stream(torch.cuda.current_stream(device))
        # What is in use otherwise: on this device, and on the current one, which becomes the current one again with its stream.
        self._before = [torch.cuda.current_stream(device), torch.cuda.current_stream()]
        if self._before[0] == self._before[1]:
            del self._before[0]

    def buffer(self, size: int) -> torch.Tensor:
        return torch.empty(size, dtype=torch.uint8, device="cpu", pin_memory=True)

    def copy(self, pieces: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> Callable[[], None]:
        # As `torch.cuda.stream` does it, which asks every time what is in use, and takes as long as the copies' beginning itself.
        try:
            torch.cuda.set_stream(self._stream)
            for target, staging in pieces:
                target.copy_(staging, non_blocking=True)
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record(self._stream)
        finally:
            self._step_back()
        return event.synchronize

    def finish(self) -> None:
        # Once more: a signal may have come between.
        self._step_back()
        self._stream.synchronize()
        torch.cuda.current_stream(self._device).wait_stream(self._stream)

    def _step_back(self) -> None:
        for stream in self._before:
            torch.cuda.set_stream(stream)


# Begins to read into memory.
StartRead = Callable[[Sequence[tuple[Wanted, torch.Tensor]]], Pending]


def read_through_ring(
    pieces: Iterable[Piece],
    lane: Lane,
    start: StartRead,
    tell: Callable[[int, list[str]], None],
    *,
    ring: Ring,
    buffer_bytes: int,
) -> None:
    """Reads parts of items into tensors of a lane's device, in their order: where tensors share memory, the last one stays.

    `tell` hears of the bytes that are on their way to the device, and of the names of items that are complete. If anything fails, reads may
    still be under way, which whoever can start them ends.
    """
    free: collections.deque[tuple[torch.Tensor, Callable[[], None]]] = collections.deque()
    made = 0
    under_way: collections.deque[tuple[torch.Tensor, _Fill, list[torch.Tensor], Pending]] = collections.deque()

    def hand_over() -> None:
        buffer, fill, staging, pending = under_way[0]
        pending.wait(None)
        under_way.popleft()
        copied = lane.copy([_turned(wanted, target, staged) for (wanted, target), staged in zip(fill.pieces, staging, strict=True)])
        free.append((buffer, copied))
        tell(fill.bytes, fill.complete)

    try:
        for fill in _fills(pieces, buffer_bytes):
            if len(under_way) == ring.reads:
                hand_over()
            if made < ring.buffers:
                # Pinned one by one, while the first are at work.
                free.appendleft((lane.buffer(buffer_bytes), _nothing))
                made += 1
            # There is one, since reads are not more than buffers.
            buffer, is_empty = free.popleft()
            is_empty()
            staging = _cut(buffer, fill.pieces)
            fetches = [(wanted, _as_meant(wanted, staged)) for (wanted, _), staged in zip(fill.pieces, staging, strict=True)]
            under_way.append((buffer, fill, staging, start(fetches)))
        while under_way:
            hand_over()
    finally:
        lane.finish()


def _nothing() -> None:
    pass


@dataclasses.dataclass
class _Fill:
    """Pieces that go into one buffer together, their bytes, and the names of items of which the last piece is among them."""

    pieces: list[Piece] = dataclasses.field(default_factory=list)
    bytes: int = 0
    complete: list[str] = dataclasses.field(default_factory=list)


def _fills(pieces: Iterable[Piece], bytes_max: int) -> Iterator[_Fill]:
    fill, used = _Fill(), 0
    for wanted, target in pieces:
        for slab in slabs(wanted, target, bytes_max):
            size = slab[0].part.bytes if slab[0].part is not None else 0
            if fill.pieces and used + size > bytes_max:
                yield fill
                fill, used = _Fill(), 0
            fill.pieces.append(slab)
            fill.bytes += size
            used += _room(size)
        fill.complete.append(wanted.name)
    if fill.pieces:
        yield fill


def slabs(wanted: Wanted, target: torch.Tensor, bytes_max: int) -> Iterator[Piece]:
    """A part, in pieces that fit into a buffer: cut along the dimensions that come first in the file, so that each lies together."""
    part = wanted.part
    assert part is not None, "only parts go through buffers"
    dim = next((dim for dim in part.order or range(len(part.sizes)) if part.sizes[dim] > 1), None)
    if part.bytes <= bytes_max or dim is None:
        yield wanted, target
        return
    size = part.sizes[dim]
    rows = max(1, bytes_max * size // part.bytes)
    for first in range(0, size, rows):
        count = min(rows, size - first)
        piece = wanted.of(part.narrowed(dim, first, count))
        yield from slabs(piece, target.narrow(dim, first, count), bytes_max)


def _cut(buffer: torch.Tensor, fill: Sequence[Piece]) -> list[torch.Tensor]:
    """A tensor in the buffer for each piece, of the type of what is stored, with its dimensions as they lie in the file: native threads read it
    as it is, and the device turns it."""
    staging, at = [], 0
    for wanted, _ in fill:
        part = wanted.part
        assert part is not None
        sizes = part.sizes if part.order is None else [part.sizes[dim] for dim in part.order]
        staging.append(buffer[at : at + part.bytes].view(part.dtype).view(sizes))
        at += _room(part.bytes)
    return staging


def _turned(wanted: Wanted, target: torch.Tensor, staged: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Both with their dimensions as they lie in the file. What is not only moved is as numbers of a type that every device can turn: not all can
    those of a few bits."""
    order = wanted.part.order if wanted.part is not None else None
    if order is not None:
        target = target.permute(order)
    elif target.is_contiguous():
        return target, staged
    bits = _BITS[target.element_size()]
    return target.view(bits), staged.view(bits)


def _as_meant(wanted: Wanted, stored: torch.Tensor) -> torch.Tensor:
    """What lies as in the file, with its dimensions as they are meant."""
    order = wanted.part.order if wanted.part is not None else None
    return stored if order is None else stored.permute([order.index(dim) for dim in range(len(order))])


def _room(size: int) -> int:
    return math.ceil(size / _ALIGNMENT) * _ALIGNMENT

