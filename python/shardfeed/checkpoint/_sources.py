"""Where bytes come from: the native reader, or somebody's file system."""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import errno
import io
import os
import queue
import stat
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any, Protocol

import torch

from shardfeed._native import CheckpointRead, CheckpointThreads, ShardfeedError, read_checkpoint
from shardfeed.checkpoint._items import NATIVE_DTYPES, NATIVE_TRANSFORMS, Wanted
from shardfeed.checkpoint._targets import byte_strides
from shardfeed.checkpoint._workers import get_optimal_workers

NativeProgress = Callable[[int, int, Sequence[str]], None]

# How long nobody hears anything of a read through somebody's file system.
_SECONDS_BETWEEN_LOOKS = 0.1

# A tensor that a part of an item goes to, or nothing for one whose bytes are wanted.
Fetch = tuple[Wanted, torch.Tensor | None]


def place_of(fs: Any, path: Any, wanted: Wanted) -> str:
    """How errors name an item: by its file, its name and its place there."""
    return f"{fs.concat_path(path, wanted.info.relative_path)}: {wanted.name} at byte {wanted.info.offset}"


@contextlib.contextmanager
def naming_what_a_file_system_raises(place: str) -> Iterator[None]:
    """What somebody's file system raises is told with the place that was read, and as something that other ranks can be told."""
    try:
        yield
    except ShardfeedError:
        raise
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{place}: {error}") from error
    except OSError as error:
        # Of the same kind, so that who tries again knows when to.
        message = f"{place}: {error}"
        raise (OSError(message) if error.errno is None else OSError(error.errno, message)) from error
    except Exception as error:
        raise ShardfeedError(f"{place}: the file system cannot read it: {type(error).__name__}: {error}") from error


class Pending(Protocol):
    """A read that is under way."""

    def wait(self, progress: NativeProgress | None) -> list[bytes]:
        """Waits for it; the bytes of all items that were wanted as bytes."""
        ...

    def stop(self) -> None:
        """Ends it early."""
        ...


class Source(Protocol):
    """Where the items of a checkpoint are read from."""

    # Whether parts can be read into tensors.
    fills_tensors: bool

    def start(self, fetches: Sequence[Fetch]) -> Pending:
        """Begins to read."""
        ...

    def remaining_transforms(self, wanted: Wanted) -> list[str]:
        """What still has to be undone when an item's bytes are there."""
        ...


class NativeSource:
    """Files of a directory, by the native reader."""

    fills_tensors = True

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        use_parallel: bool,
        num_workers: int | None,
        verify: bool,
        memory_budget: int | None,
        follow_links: bool,
    ) -> None:
        self._path = Path(path)
        self._options: dict[str, Any] = {
            "use_parallel": use_parallel,
            "num_workers": num_workers,
            "verify": verify,
            "memory_budget": memory_budget,
            "follow_links": follow_links,
        }

    def start(self, fetches: Sequence[Fetch]) -> NativePending:
        told, parts, items = _Told(), [], []
        for wanted, target in fetches:
            if target is None:
                transforms = [] if self.remaining_transforms(wanted) else wanted.transforms
                stored = (told.file(wanted), wanted.info.offset, wanted.info.length, transforms)
                items.append((wanted.name, wanted.bytes_max, stored))
            else:
                parts.append(told.part(wanted, target))
        keep = [target for _, target in fetches if target is not None]
        files = list(told.files)
        read = read_checkpoint(self._path, files, told.chunks, parts, items, keep, **self._options)
        return NativePending(read, self._path, files)

    def threads(self, wanted: Iterable[Wanted], num_workers: int) -> NativeThreads:
        """So many threads that read parts of these items, which are all that they are ever asked for."""
        options = {name: self._options[name] for name in ("use_parallel", "verify", "follow_links")}
        return NativeThreads(self._path, wanted, {**options, "num_workers": num_workers})

    def remaining_transforms(self, wanted: Wanted) -> list[str]:
        transforms = wanted.transforms
        return [] if all(transform in NATIVE_TRANSFORMS for transform in transforms) else transforms


class _Told:
    """What the native reader is told of a checkpoint: its files and chunks, which parts name by their numbers."""

    def __init__(self) -> None:
        self.files: dict[str, int] = {}
        self.chunks: list[Any] = []
        self._numbers: dict[tuple[str, int, str], int] = {}

    def file(self, wanted: Wanted) -> int:
        return self.files.setdefault(wanted.info.relative_path, len(self.files))

    def chunk(self, wanted: Wanted) -> int:
        info, part = wanted.info, wanted.part
        assert part is not None, "only parts are read into tensors"
        key = (info.relative_path, info.offset, wanted.name)
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self.chunks)
            stored = (self.file(wanted), info.offset, info.length, wanted.transforms)
            self.chunks.append((wanted.name, NATIVE_DTYPES[part.dtype], part.chunk_offsets, part.chunk_sizes, stored))
        return number

    def part(self, wanted: Wanted, target: torch.Tensor) -> Any:
        number, part = self.chunk(wanted), wanted.part
        assert part is not None, "only parts are read into tensors"
        return number, part.offsets, part.sizes, target.data_ptr(), byte_strides(target)


class NativeThreads:
    """Threads that read one lot after another, each as much as a buffer holds: what costs as much as that is done once."""

    def __init__(self, path: Path, wanted: Iterable[Wanted], options: dict[str, Any]) -> None:
        self._path = path
        self._told = _Told()
        for one in wanted:
            self._told.chunk(one)
        self._files = list(self._told.files)
        try:
            self._threads = CheckpointThreads(path, self._files, self._told.chunks, **options)
        except ShardfeedError as error:
            _raise_as_the_system_does(error, path, self._files)
            raise

    def start(self, fetches: Sequence[tuple[Wanted, torch.Tensor]]) -> NativePending:
        """On one thread, after all that was started before."""
        parts = [self._told.part(wanted, target) for wanted, target in fetches]
        return NativePending(self._threads.start(parts, [target for _, target in fetches]), self._path, self._files)

    def looked_at(self, wanted: Sequence[Wanted]) -> list[Wanted]:
        """The same, each with the order in which its dimensions lie in the file."""
        orders = self._threads.stored_orders([self._told.chunk(one) for one in wanted])
        return [
            one if order is None or one.part is None else replace(one, part=replace(one.part, order=tuple(order)))
            for one, order in zip(wanted, orders, strict=True)
        ]

    def compare_rest(self) -> None:
        """Where checksums are compared: those of what is not complete when everything was read that somebody wants."""
        try:
            self._threads.compare_rest()
        except ShardfeedError as error:
            _raise_as_the_system_does(error, self._path, self._files)
            raise

    def close(self) -> None:
        self._threads.close()


def _raise_as_the_system_does(error: ShardfeedError, path: Path, files: Sequence[str]) -> None:
    """What failed because a file cannot be opened is an error of the kind that opening it is, as it is with torch."""
    for file in (path / name for name in files):
        number = None
        try:
            # Nothing is opened: what waits for a writer is no file of a checkpoint either.
            if stat.S_ISDIR(file.stat().st_mode):
                number = errno.EISDIR
            elif not os.access(file, os.R_OK):
                number = errno.EACCES
        except OSError as found:
            number = found.errno
        if number is not None:
            raise OSError(number, str(error), str(file)) from error


class NativePending:
    """A read on native threads."""

    def __init__(self, read: CheckpointRead, path: Path, files: list[str]) -> None:
        self._read = read
        self._path = path
        self._files = files

    def wait(self, progress: NativeProgress | None) -> list[bytes]:
        try:
            return self._read.wait(progress)[0]
        except ShardfeedError as error:
            _raise_as_the_system_does(error, self._path, self._files)
            raise

    def stop(self) -> None:
        self._read.stop()


class StreamSource:
    """Files of somebody's file system, an object with the methods of torch's `FileSystemBase`, read through it in threads."""

    fills_tensors = False

    def __init__(self, fs: Any, path: Any, num_workers: int | None) -> None:
        self._fs = fs
        self._path = path
        self._num_workers = num_workers

    def start(self, fetches: Sequence[Fetch]) -> StreamPending:
        workers = self._num_workers or max(4, get_optimal_workers(len(fetches)))
        reads: list[concurrent.futures.Future[bytes]] = [concurrent.futures.Future() for _ in fetches]
        left = collections.deque(zip(reads, (wanted for wanted, _ in fetches)))
        # Threads of our own: the interpreter's end waits for those of an executor, also for one that waits for a file system for ever.
        for number in range(min(workers, len(fetches))):
            threading.Thread(target=self._work, args=(left,), name=f"shardfeed-stream-{number}", daemon=True).start()
        return StreamPending(reads, (wanted.bytes for wanted, _ in fetches))

    def _work(self, left: collections.deque[tuple[concurrent.futures.Future[bytes], Wanted]]) -> None:
        while left:
            try:
                read, wanted = left.popleft()
            except IndexError:
                return  # Another thread took the last.
            if read.set_running_or_notify_cancel():
                try:
                    read.set_result(self._read(wanted))
                except BaseException as error:
                    read.set_exception(error)

    def remaining_transforms(self, wanted: Wanted) -> list[str]:
        return wanted.transforms

    def _read(self, wanted: Wanted) -> bytes:
        info = wanted.info
        place = place_of(self._fs, self._path, wanted)
        parts = PurePosixPath(info.relative_path).parts
        if not parts or parts[0] == "/" or ".." in parts or "\\" in info.relative_path:
            raise ShardfeedError(f"{place}: the file would lie outside of the checkpoint; it is not read")
        with naming_what_a_file_system_raises(place):
            return self._read_bytes(wanted, place)

    def _read_bytes(self, wanted: Wanted, place: str) -> bytes:
        info = wanted.info
        with self._fs.create_stream(self._fs.concat_path(self._path, info.relative_path), "rb") as stream:
            stream.seek(info.offset)
            read = io.BytesIO()
            while read.tell() < info.length:
                portion = stream.read(info.length - read.tell())
                if not portion:
                    raise ShardfeedError(
                        f"{place}: {info.length} bytes reach past the end of the file; it is cut short: copy it again"
                    )
                read.write(portion)
            return read.getvalue()


class StreamPending:
    """Reads in Python's threads."""

    def __init__(self, reads: list[concurrent.futures.Future[bytes]], sizes: Iterable[int]) -> None:
        self._reads = reads
        self._sizes = dict(zip(reads, sizes, strict=True))

    def wait(self, progress: NativeProgress | None) -> list[bytes]:
        try:
            self._wait_for_all(progress)
            failed = [read for read in self._reads if read.done() and not read.cancelled() and read.exception() is not None]
            if len(failed) > 1:
                errors = [read.exception() for read in failed]
                kind = OSError if all(isinstance(error, OSError) for error in errors) else ShardfeedError
                reasons = "\n".join(map(str, errors))
                raise kind(f"{len(failed)} things are wrong with the checkpoint:\n{reasons}") from errors[0]
            return [read.result() for read in failed or self._reads]
        finally:
            self.stop()

    def _wait_for_all(self, progress: NativeProgress | None) -> None:
        """Or for the first that fails."""
        if progress is None:
            concurrent.futures.wait(self._reads, return_when=concurrent.futures.FIRST_EXCEPTION)
            return
        # To ask all of them how they are would take as long as what they do.
        ended: queue.SimpleQueue[concurrent.futures.Future[bytes]] = queue.SimpleQueue()
        for read in self._reads:
            read.add_done_callback(ended.put)
        left, bytes_read, bytes_told, bytes_total = len(self._reads), 0, 0, sum(self._sizes.values())
        told = time.monotonic()
        while left:
            with contextlib.suppress(queue.Empty):
                read = ended.get(timeout=_SECONDS_BETWEEN_LOOKS)
                if read.cancelled() or read.exception() is not None:
                    return
                left, bytes_read = left - 1, bytes_read + self._sizes[read]
            if bytes_read > bytes_told and time.monotonic() - told >= _SECONDS_BETWEEN_LOOKS:
                progress(bytes_read, bytes_total, ())
                bytes_told, told = bytes_read, time.monotonic()

    def stop(self) -> None:
        for read in self._reads:
            read.cancel()
