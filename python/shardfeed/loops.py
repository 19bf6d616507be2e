"""Which epoch a loop over a DataLoader is, on which all of its workers agree."""

import json
import zlib
from typing import Any

import torch

#: More workers of one DataLoader are a mistake.
WORKERS_MAX = 256
#: Loops that are remembered: one may still be starting while others begin.
LOOPS_KEPT = 64
#: A state is under 1 KiB.
STATE_BYTES_MAX = 4096

_NAME_BITS = 32
_EPOCH_MAX = 2**30


class Loops:
    """Memory that a data set shares with the workers of a DataLoader, whether they are forked or spawned.

    The process that has the DataLoader writes where the next loop begins; workers only write which epoch the loop is that they are in, each
    into a row of its own, a number at a time, so that nobody ever waits. Workers of one loop were given one seed by the DataLoader: they know
    each other by it.
    """

    def __init__(self) -> None:
        # Each entry: a loop's name, and one more than its epoch. 0: nothing.
        self._entries = torch.zeros(WORKERS_MAX, LOOPS_KEPT, dtype=torch.int64).share_memory_()  # type: ignore[no-untyped-call]
        self._base = torch.zeros(STATE_BYTES_MAX, dtype=torch.uint8).share_memory_()  # type: ignore[no-untyped-call]

    def begin_at(self, state: dict[str, Any] | None) -> None:
        """The next loop begins at a state; without one, where the loader of whoever begins it stands. To be called between loops."""
        text = b"" if state is None else json.dumps(state).encode()
        if len(text) >= STATE_BYTES_MAX:
            raise ValueError(f"a state of {len(text)} bytes; skip neighbouring steps as one range")
        self._base.zero_()
        self._base[: len(text)] = torch.frombuffer(bytearray(text or b"\0"), dtype=torch.uint8)[: len(text)]
        self._entries.zero_()

    def base(self) -> dict[str, Any] | None:
        """Where the first loop begins, if that was told."""
        text = bytes(self._base.numpy()).rstrip(b"\0")
        return None if not text else dict(json.loads(text))

    def last_epoch(self) -> int | None:
        """The last epoch that workers began."""
        return _last_epoch(self._entries)

    def join(self, worker: int, seed: int, epoch: int | None, *, first: int = 0) -> int:
        """The epoch of the loop that a worker begins: `epoch` if the worker knows, else that of the others in the loop, else the one
        after the last, else `first`.
        """
        if worker >= WORKERS_MAX:
            raise ValueError(f"worker {worker}: a TokenDataset has at most {WORKERS_MAX} of them")
        # Looked at once: between two looks another worker of this loop may have written, and would be taken for a loop before this one.
        entries = self._entries.clone()
        # A worker begins each loop once. Meeting the seed again is another loop: of workers that persist, or of a seed that was set again.
        mine = entries[worker].tolist()
        name = _name(seed, 0)
        begun = 0
        while any(entry >> _NAME_BITS == name for entry in mine):
            begun += 1
            name = _name(seed, begun)
        if epoch is None:
            same, last = entries[entries // 2**_NAME_BITS == name], _last_epoch(entries)
            if len(same):
                epoch = int(same[0] % 2**_NAME_BITS) - 1
            else:
                epoch = first if last is None else last + 1
        if epoch >= _EPOCH_MAX:
            raise ValueError(f"epoch {epoch} is too far")
        oldest = min(range(LOOPS_KEPT), key=lambda at: mine[at] % 2**_NAME_BITS)
        self._entries[worker, oldest] = name << _NAME_BITS | epoch + 1
        return epoch


def _last_epoch(entries: torch.Tensor) -> int | None:
    last = int((entries % 2**_NAME_BITS).max())
    return last - 1 if last else None


def _name(seed: int, begun: int) -> int:
    """31 bits that are not 0."""
    return zlib.crc32(f"{seed} {begun}".encode()) & 0x7FFF_FFFF or 1
