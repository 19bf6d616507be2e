"""On the way to a device: a ring of pinned buffers that native threads fill while a stream of its own empties them."""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

import torch

from shardfeed.checkpoint._items import Wanted
from shardfeed.checkpoint._sources import Fetch, Pending

# A part of an item, and where it goes.
Piece = tuple[Wanted, torch.Tensor]

# Bytes of a buffer, and how many there are. Pinning takes a second for a gigabyte or two, so that few are better; torch keeps them for the
# next load.
BUFFER_BYTES = 32 << 20
BUFFERS = 5

# Reads that are under way at a time; the other buffers are emptied. With fewer, threads wait for the last ones of a read, and for what
# Python does between reads.
READS = 4

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

    def buffer(self, size: int) -> torch.Tensor:
        return torch.empty(size, dtype=torch.uint8, device="cpu", pin_memory=True)

    def copy(self, pieces: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> Callable[[], None]:
        with torch.cuda.stream(self._stream):
            for target, staging in pieces:
                target.copy_(staging, non_blocking=True)
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record(self._stream)
        return event.synchronize

    def finish(self) -> None:
        self._stream.synchronize()
        torch.cuda.current_stream(self._device).wait_stream(self._stream)


StartRead = Callable[[Sequence[Fetch], int], Pending]


def read_through_ring(
    pieces: Iterable[Piece],
    lane: Lane,
    start: StartRead,
    tell: Callable[[int, list[str]], None],
    *,
    workers: int,
    buffer_bytes: int = BUFFER_BYTES,
    buffers: int = BUFFERS,
) -> None:
    """Reads parts of items into tensors of a lane's device, in their order: where tensors share memory, the last one stays.

    `start(fetches, workers)` begins a read into memory; several are under way at a time, and have `workers` threads between them. `tell`
    hears of the bytes that are on their way to the device, and of the names of items that are complete.
    """
    fills = _fills(pieces, buffer_bytes)
    shares = collections.deque(shares_of(workers, min(READS, buffers)))
    free: collections.deque[tuple[torch.Tensor, Callable[[], None]]] = collections.deque()
    made = 0
    under_way: collections.deque[tuple[torch.Tensor, _Fill, list[torch.Tensor], Pending, int]] = collections.deque()

    def hand_over() -> None:
        buffer, fill, staging, pending, share = under_way[0]
        pending.wait(None)
        under_way.popleft()
        shares.append(share)
        copied = lane.copy([(target, staged) for (_, target), staged in zip(fill.pieces, staging, strict=True)])
        free.append((buffer, copied))
        tell(sum(_part_bytes(wanted) for wanted, _ in fill.pieces), fill.complete)

    try:
        for fill in fills:
            if not shares:
                hand_over()
            if made < buffers:
                # Pinned one by one, while the first are at work.
                free.appendleft((lane.buffer(buffer_bytes), _nothing))
                made += 1
            # There is one, since reads are not more than buffers.
            buffer, is_empty = free.popleft()
            is_empty()
            staging = _cut(buffer, fill.pieces)
            fetches: list[Fetch] = [(wanted, staged) for (wanted, _), staged in zip(fill.pieces, staging, strict=True)]
            share = shares.popleft()
            under_way.append((buffer, fill, staging, start(fetches, share), share))
        while under_way:
            hand_over()
    finally:
        for _, _, _, pending, _ in under_way:
            pending.stop()
        lane.finish()


def shares_of(workers: int, reads_max: int) -> list[int]:
    """How many threads each of some reads has, so that all have so many together: each at least one, and as equally many as can be."""
    reads = max(1, min(workers, reads_max))
    return [workers // reads + (read < workers % reads) for read in range(reads)]


def _nothing() -> None:
    pass


@dataclasses.dataclass
class _Fill:
    """Pieces that go into one buffer together, and the names of items of which the last piece is among them."""

    pieces: list[Piece] = dataclasses.field(default_factory=list)
    complete: list[str] = dataclasses.field(default_factory=list)


def _fills(pieces: Iterable[Piece], bytes_max: int) -> Iterator[_Fill]:
    fill, used = _Fill(), 0
    for wanted, target in pieces:
        for slab in slabs(wanted, target, bytes_max):
            size = _room(_part_bytes(slab[0]))
            if fill.pieces and used + size > bytes_max:
                yield fill
                fill, used = _Fill(), 0
            fill.pieces.append(slab)
            used += size
        fill.complete.append(wanted.name)
    if fill.pieces:
        yield fill


def slabs(wanted: Wanted, target: torch.Tensor, bytes_max: int) -> Iterator[Piece]:
    """A part, in pieces that fit into a buffer: cut along its first dimensions, so that they lie together where it lies row by row."""
    part = wanted.part
    assert part is not None, "only parts go through buffers"
    dim = next((dim for dim, size in enumerate(part.sizes) if size > 1), None)
    if part.bytes <= bytes_max or dim is None:
        yield wanted, target
        return
    size = part.sizes[dim]
    rows = max(1, bytes_max * size // part.bytes)
    for first in range(0, size, rows):
        count = min(rows, size - first)
        offsets = (*part.offsets[:dim], part.offsets[dim] + first, *part.offsets[dim + 1 :])
        sizes = (*part.sizes[:dim], count, *part.sizes[dim + 1 :])
        piece = dataclasses.replace(wanted, part=dataclasses.replace(part, offsets=offsets, sizes=sizes))
        yield from slabs(piece, target.narrow(dim, first, count), bytes_max)


def _cut(buffer: torch.Tensor, fill: Sequence[Piece]) -> list[torch.Tensor]:
    """A tensor in the buffer for each piece, of the type and the shape of what is stored."""
    staging, at = [], 0
    for wanted, _ in fill:
        part = wanted.part
        assert part is not None
        staging.append(buffer[at : at + part.bytes].view(part.dtype).view(part.sizes))
        at += _room(part.bytes)
    return staging


def _part_bytes(wanted: Wanted) -> int:
    return wanted.part.bytes if wanted.part is not None else 0


def _room(size: int) -> int:
    return math.ceil(size / _ALIGNMENT) * _ALIGNMENT

