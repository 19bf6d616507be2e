"""How far a load is."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
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

    def __init__(self, tell: TellProgress | None, bytes_total: int) -> None:
        self._tell = tell
        self._bytes_before = 0
        self._bytes_total = bytes_total
        self._is_complete = False

    def native(self) -> Callable[[int, int, Sequence[str]], None] | None:
        """What a native read calls while it is waited for; `None` if nobody wants to know."""
        return None if self._tell is None else self._during

    def finish(self, read_bytes: int, names: Sequence[str] = ()) -> None:
        """A read has ended that was to bring so many bytes."""
        self._bytes_before += read_bytes
        if self._tell is not None:
            self._say(self._bytes_before, names)

    def complete(self) -> None:
        """Everything is there."""
        if self._tell is not None and not self._is_complete:
            self._say(self._bytes_total, ())

    def _during(self, read_bytes: int, _read_bytes_total: int, finished: Sequence[str]) -> None:
        self._say(self._bytes_before + read_bytes, finished)

    def _say(self, done: int, finished: Sequence[str]) -> None:
        assert self._tell is not None
        self._is_complete = done >= self._bytes_total
        self._tell(Progress(min(done, self._bytes_total), self._bytes_total, tuple(finished)))


class Bar:
    """A line on a terminal that grows. Where the output is no terminal, nothing is written."""

    _WIDTH = 30

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out or sys.stderr
        self._is_shown = self._out.isatty()
        self._started = time.monotonic()

    def __call__(self, progress: Progress) -> None:
        if not self._is_shown:
            return
        share = progress.bytes / progress.bytes_total if progress.bytes_total else 1.0
        filled = int(share * self._WIDTH)
        rate = progress.bytes / max(time.monotonic() - self._started, 1e-6) / 2**30
        bar = "#" * filled + "." * (self._WIDTH - filled)
        end = "\n" if share >= 1.0 else ""
        self._out.write(f"\rloading [{bar}] {share:4.0%} of {progress.bytes_total / 2**20:.1f} MiB, {rate:.2f} GiB/s{end}")
        self._out.flush()
