"""How far a load is."""

from __future__ import annotations

import collections
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TextIO


@dataclass(frozen=True)
class Progress:
    """How far a load is: bytes that are where they belong, bytes there will be, and what has been finished since the last time."""

    bytes: int
    bytes_total: int
    finished: tuple[str, ...] = ()


TellProgress = Callable[[Progress], None]


class Tracker:
    """Adds up what several reads of one load have done, and tells it."""

    def __init__(self, tell: TellProgress | None, bytes_total: int, names: Iterable[str] = ()) -> None:
        """`names`: that of every item, so that a tensor is finished with the last of its items."""
        self._tell = tell
        self._items_left = collections.Counter(names)
        self._bytes_before = 0
        self._bytes_total = bytes_total
        self._is_complete = False

    def native(self, *, is_final: bool) -> Callable[[int, int, Sequence[str]], None] | None:
        """What a native read calls while it is waited for; `None` if nobody wants to know. `is_final`: it reads to where things belong."""
        if self._tell is None:
            return None
        return self._during if is_final else self._during_staging

    def finish(self, read_bytes: int, names: Sequence[str] = ()) -> None:
        """A read has ended that was to bring so many bytes."""
        self._bytes_before += read_bytes
        if self._tell is not None:
            self._say(self._bytes_before, [name for name in names if self._is_last(name)])

    def complete(self) -> None:
        """Everything is there."""
        if self._tell is not None and not self._is_complete:
            self._say(self._bytes_total, ())

    def _during(self, read_bytes: int, _read_bytes_total: int, finished: Sequence[str]) -> None:
        # Of a tensor that has several items a native read does not say which one it was.
        self._say(self._bytes_before + read_bytes, [name for name in finished if self._items_left[name] == 1 and self._is_last(name)])

    def _during_staging(self, read_bytes: int, _read_bytes_total: int, _finished: Sequence[str]) -> None:
        self._say(self._bytes_before + read_bytes, ())

    def _is_last(self, name: str) -> bool:
        left = self._items_left[name]
        self._items_left[name] = max(0, left - 1)
        return left == 1

    def _say(self, done: int, finished: Sequence[str]) -> None:
        assert self._tell is not None
        self._is_complete = done >= self._bytes_total
        self._tell(Progress(min(done, self._bytes_total), self._bytes_total, tuple(finished)))


class Bar:
    """A line on a terminal that grows, twenty times a second at most: a slow terminal holds nobody up. Where the output is no terminal, nothing is
    written."""

    _WIDTH = 30
    _SECONDS_MIN = 0.05

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out or sys.stderr
        self._is_shown = self._out.isatty()
        self._is_complete = False
        self._started = time.monotonic()
        self._drawn: float | None = None

    def __call__(self, progress: Progress) -> None:
        # Names may come after the last byte; the line is written by then.
        if not self._is_shown or self._is_complete:
            return
        share = progress.bytes / progress.bytes_total if progress.bytes_total else 1.0
        self._is_complete = share >= 1.0
        now = time.monotonic()
        if self._drawn is not None and now - self._drawn < self._SECONDS_MIN and not self._is_complete:
            return
        self._drawn = now
        filled = int(share * self._WIDTH)
        rate = progress.bytes / max(now - self._started, 1e-6) / 2**30
        bar = "#" * filled + "." * (self._WIDTH - filled)
        end = "\n" if self._is_complete else ""
        self._out.write(f"\rloading [{bar}] {share:4.0%} of {progress.bytes_total / 2**20:.1f} MiB, {rate:.2f} GiB/s{end}")
        self._out.flush()
