"""Which epoch a loop over a DataLoader is, on which all of its workers agree."""

import json
import os
import sys
import threading
import time
import zlib
from collections.abc import Callable
from multiprocessing.context import get_spawning_popen
from typing import Any

import torch

#: More workers of one DataLoader are a mistake.
WORKERS_MAX = 256
#: Loops that are remembered: one may still be starting while others begin.
LOOPS_KEPT = 64
#: Generations whose loops are remembered: workers may still be starting when the next ones are told.
GENERATIONS_KEPT = 16
#: A state is under 1 KiB.
STATE_BYTES_MAX = 4096
#: Writing takes microseconds: who waits this long waits for a process that died while it wrote.
WRITING_SECONDS_MAX = 5.0

_NAME_BITS = 32
_EPOCH_MAX = 2**30

# At the start of what is told, before the text: its sequence number, its length and its checksum.
_HEAD_NUMBERS = 3
_HEAD_BYTES = 8 * _HEAD_NUMBERS


class Loops:
    """Memory that a data set shares with the workers of a DataLoader, whether they are forked or spawned.

    The process that has the DataLoader, its owner, writes where the next loop begins: each time is a new generation. Workers only write
    which epoch the loop is that they are in, each into a row of its own, a number at a time, so that nobody ever waits. Workers of one loop
    hand their batches over through one queue: they know each other by it, and by how many loops they have done with it.

    Each process knows the generation that it stands in, which is that of its parent when it was made: what is told while workers start
    does not reach some of them and not others. Those that persist ask for news before they acknowledge another loop, and until all of them
    have, nobody has the loop's iterator. Where a thread tells something in between, so that they differ, `join` says so.

    A copy is another data set, with memory of its own, that goes on after the same epoch: `last` of it was.
    """

    def __init__(self, last: int | None = None) -> None:
        # Each entry: a loop's name, and one more than its epoch. 0: nothing.
        entries = _new_memory(8 * GENERATIONS_KEPT * WORKERS_MAX * LOOPS_KEPT)
        self._entries = entries.view(torch.int64).view(GENERATIONS_KEPT, WORKERS_MAX, LOOPS_KEPT)
        self._told = _new_memory(_HEAD_BYTES + STATE_BYTES_MAX)
        #: The process that has the DataLoader.
        self.owner = os.getpid()
        #: What this process has heard of.
        self.generation = 0
        if last is not None:
            # A loop without a name, which nobody joins.
            self._entries[0, 0, 0] = last + 1

    @property
    def is_at_home(self) -> bool:
        """Whether this process is the owner."""
        return self.owner == os.getpid()

    def begin_at(self, state: dict[str, Any]) -> None:
        """Loops from the next one on begin at a state. The owner calls it."""
        text = json.dumps(state).encode()
        if len(text) > STATE_BYTES_MAX:
            raise ValueError(f"a state of {len(text)} bytes; skip neighbouring steps as one range")
        head = self._head()
        # Odd while it is written: who reads in the meantime reads again.
        head[0] += 1
        self.generation += 1
        self._entries[self.generation % GENERATIONS_KEPT].zero_()
        self._told[_HEAD_BYTES : _HEAD_BYTES + len(text)] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        head[1], head[2] = len(text), zlib.crc32(text)
        head[0] += 1

    def news(self) -> dict[str, Any] | None:
        """Where loops begin, if that was told since this process last asked, or was made; it stands in that generation from here on."""
        give_up = time.monotonic() + WRITING_SECONDS_MAX
        while True:
            before, length, checksum = self._head().tolist()
            if before % 2 == 0:
                if before // 2 <= self.generation:
                    return None
                text = self._told[_HEAD_BYTES : _HEAD_BYTES + length].numpy().tobytes()
                # The checksum for machines on which another core may see what was written in another order.
                if int(self._head()[0]) == before and zlib.crc32(text) == checksum:
                    self.generation = before // 2
                    return dict(json.loads(text))
            if time.monotonic() > give_up:
                raise RuntimeError(f"process {self.owner} began to say where the next loop begins, and never ended; did it die?")

    def last_epoch(self) -> int | None:
        """The last epoch that workers began."""
        return _last_epoch(self._table())

    def join(self, worker: int, loop: object, epoch: int | None, *, first: int = 0) -> int:
        """The epoch of the loop that a worker begins: `epoch` if the worker knows, else that of the others in the loop, else the one
        after the last, else `first`. `loop`: what all workers of the loop call it, and those of no other.
        """
        if worker >= WORKERS_MAX:
            raise ValueError(f"worker {worker}: a TokenDataset has at most {WORKERS_MAX} of them")
        # Looked at once: between two looks another worker of this loop may have written, and would be taken for a loop before this one.
        entries = self._table().clone()
        name = _name(loop)
        if epoch is None:
            same, last = entries[entries // 2**_NAME_BITS == name], _last_epoch(entries)
            if len(same):
                epoch = int(same[0] % 2**_NAME_BITS) - 1
            else:
                epoch = first if last is None else last + 1
        if epoch >= _EPOCH_MAX:
            raise ValueError(f"epoch {epoch} is too far")
        mine = entries[worker].tolist()
        oldest = min(range(LOOPS_KEPT), key=lambda at: mine[at] % 2**_NAME_BITS)
        self._table()[worker, oldest] = name << _NAME_BITS | epoch + 1
        # After that is written: of two workers that differ, at least the second finds the first.
        self._refuse_two_generations(name)
        return epoch

    def _refuse_two_generations(self, name: int) -> None:
        """Workers of one loop that began at different places would hand out some steps twice, and others never."""
        mine = self.generation % GENERATIONS_KEPT
        # One by one: all of them are so much that torch would have several threads look, for which a child that was forked may wait for ever.
        others = (self._entries[other] for other in range(GENERATIONS_KEPT) if other != mine)
        is_elsewhere = any(bool((other // 2**_NAME_BITS == name).any()) for other in others)
        # That of a generation that is being written is taken over, too.
        newest = (int(self._head()[0]) + 1) // 2
        if newest - self.generation >= GENERATIONS_KEPT:
            raise RuntimeError(
                f"while workers of a DataLoader were starting, the data set was told {newest - self.generation} times where to begin; tell "
                "it before iter(DataLoader), or once the loop has begun"
            )
        if is_elsewhere:
            raise RuntimeError(
                "the data set was told where to begin, by another thread, while a loop over a DataLoader was beginning: some workers heard of "
                "it and others did not; tell it before iter(DataLoader), or after"
            )

    def _head(self) -> torch.Tensor:
        return self._told[:_HEAD_BYTES].view(torch.int64)

    def _table(self) -> torch.Tensor:
        """The loops of this process's generation."""
        return self._entries[self.generation % GENERATIONS_KEPT]

    def __reduce__(self) -> tuple[Any, ...]:
        if get_spawning_popen() is None:
            return Loops, (self.last_epoch(),)
        return _shared, (self._entries, self._told, self.owner, self.generation)


def queue_of_workers() -> Any:
    """In a worker of a DataLoader: the queue that its batches go to. All workers of a DataLoader's iterator share one, whatever the seed
    and whichever way they were made.
    """
    # Of the main thread, not of the caller: a data set that wraps ours may read it in a thread.
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None:
        if frame.f_code.co_name == "_worker_loop" and "data_queue" in frame.f_locals:
            return frame.f_locals["data_queue"]
        frame = frame.f_back
    raise RuntimeError("a worker of no DataLoader that is known here: it cannot tell which loop it is in; use num_workers=0")


def number_of(queue: Any) -> int:
    """Which queue it is, by the number that the system gave its pipe, which nobody else has."""
    return os.fstat(queue._reader.fileno()).st_ino


def before_acknowledging(queue: Any, call: Callable[[], None]) -> None:
    """Has a worker that persists call something before it acknowledges that another loop begins.

    Torch's workers acknowledge before they ask the data set for its iterator, and `iter(DataLoader)` returns when all of them have: what is
    told from then on must not count for that loop any more.
    """
    put = queue.put

    def call_and_put(message: Any, *arguments: Any, **options: Any) -> None:
        if isinstance(message, tuple) and type(message[0]).__name__ == "_ResumeIteration":
            call()
        put(message, *arguments, **options)

    queue.put = call_and_put


def _new_memory(size: int) -> torch.Tensor:
    """Shared bytes, all of them 0, on no default device: that may be one without memory.

    The system makes them 0. `torch.zeros` and `share_memory_` would have several threads do it, for which a child that was forked waits for
    ever if its parent had some. What is done with a part of them later is little enough for one thread.
    """
    storage = torch.UntypedStorage._new_shared(size, device="cpu")  # type: ignore[no-untyped-call]
    return torch.empty(0, dtype=torch.uint8, device="cpu").set_(storage)


def _shared(entries: torch.Tensor, told: torch.Tensor, owner: int, generation: int) -> Loops:
    """In a process that was spawned: the same memory."""
    loops = Loops.__new__(Loops)
    loops._entries, loops._told, loops.owner, loops.generation = entries, told, owner, generation
    return loops


def _last_epoch(entries: torch.Tensor) -> int | None:
    last = int((entries % 2**_NAME_BITS).max())
    return last - 1 if last else None


def _name(loop: object) -> int:
    """31 bits that are not 0."""
    return zlib.crc32(str(loop).encode()) & 0x7FFF_FFFF or 1
