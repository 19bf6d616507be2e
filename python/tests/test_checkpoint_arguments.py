"""What the arguments of `Reader` and `load` do, besides that the result is the same."""

from __future__ import annotations

import collections
import contextlib
import errno
import io
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_support import MemoryFiles, RecordingPlanner, item_of, load_alone, load_with, save
from shardfeed import ShardfeedError
from shardfeed.checkpoint import Progress, Reader, _sources, load
from shardfeed.checkpoint._sources import NativePending
from test_checkpoint_api import Terminal
from test_checkpoint_errors import cause


def noted_workers(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many threads each native read had."""
    noted = list[int]()

    def noting_wait(self: NativePending, progress: Any) -> list[bytes]:
        items, done = self._read.wait(progress)
        noted.append(done["workers"])
        return items

    monkeypatch.setattr(NativePending, "wait", noting_wait)
    return noted


@pytest.mark.parametrize(
    ("options", "workers"),
    [
        ({"use_parallel": False}, 1),
        ({"num_workers": 1}, 1),
        ({"num_workers": 3}, 3),
        ({"num_workers": 20}, 20),
        # To look where things lie takes 64 KiB each, and to read them more.
        ({"num_workers": 20, "memory_budget": 200 << 10}, 3),
        ({"num_workers": 3, "use_parallel": False}, 1),
    ],
    ids=str,
)
def test_tensors_are_read_by_as_many_threads_as_were_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], workers: int
) -> None:
    saved = {f"t{number}": torch.randn(1 << 18) for number in range(40)}
    save(saved, tmp_path)
    noted = noted_workers(monkeypatch)
    state = {name: torch.zeros_like(tensor) for name, tensor in saved.items()}
    load_alone(Reader(tmp_path, **options), state)
    assert all(torch.equal(state[name], saved[name]) for name in saved)
    assert noted == [workers]
    noted.clear()
    load(state, tmp_path, **options)
    assert noted == [workers], "`load` passes them on"


class Counting(MemoryFiles):
    """Notes how many streams were open at a time."""

    def __init__(self, files: dict[str, bytes]) -> None:
        super().__init__(files)
        self.lock, self.open, self.most_open = threading.Lock(), 0, 0

    @contextlib.contextmanager
    def create_stream(self, path: str, mode: str) -> Iterator[io.BytesIO]:
        with super().create_stream(path, mode) as stream:
            with self.lock:
                self.open += 1
                self.most_open = max(self.most_open, self.open)
            # Others come meanwhile, if there are any.
            time.sleep(0.003)
            yield stream
            with self.lock:
                self.open -= 1


class Meeting(MemoryFiles):
    """Nobody gets a stream of an item before two have asked for one."""

    def __init__(self, files: dict[str, bytes]) -> None:
        super().__init__(files)
        self.two = threading.Barrier(2)

    @contextlib.contextmanager
    def create_stream(self, path: str, mode: str) -> Iterator[io.BytesIO]:
        if not path.endswith(".metadata"):
            self.two.wait(timeout=30)
        with super().create_stream(path, mode) as stream:
            yield stream


def files_of(path: Path) -> dict[str, bytes]:
    return {f"memory://job/{file.name}": file.read_bytes() for file in path.iterdir()}


@pytest.mark.parametrize("memory_budget", [None, 20_000])
@pytest.mark.parametrize(
    ("options", "most"), [({"use_parallel": False}, 1), ({"num_workers": 1}, 1), ({"num_workers": 3}, 3), ({"num_workers": 8}, 8)], ids=str
)
def test_a_file_system_is_used_by_no_more_threads_than_were_asked_for(
    tmp_path: Path, options: dict[str, Any], most: int, memory_budget: int | None
) -> None:
    saved = {f"t{number}": torch.randn(500) for number in range(40)}
    save(saved, tmp_path)
    fs, state = Counting(files_of(tmp_path)), {name: torch.zeros(500) for name in saved}
    load_alone(Reader("memory://job", fs=fs, memory_budget=memory_budget, **options), state)
    assert all(torch.equal(state[name], saved[name]) for name in saved)
    assert fs.open == 0 and 1 <= fs.most_open <= most


def test_a_file_system_is_used_in_threads(tmp_path: Path) -> None:
    saved = {f"t{number}": torch.randn(50) for number in range(10)}
    save(saved, tmp_path)
    state = {name: torch.zeros(50) for name in saved}
    load_alone(Reader("memory://job", fs=Meeting(files_of(tmp_path))), state)
    assert all(torch.equal(state[name], saved[name]) for name in saved)


@pytest.mark.parametrize("options", [{"use_parallel": False}, {"num_workers": 2}], ids=str)
def test_what_goes_through_memory_in_between_has_no_more_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    saved = {f"t{number}": torch.randn(1 << 16) for number in range(40)}
    save(saved, tmp_path)
    under_way, most, start = set[int](), list[int](), _sources.NativeSource.start

    def noting_start(self: _sources.NativeSource, fetches: Any) -> NativePending:
        pending = start(self, fetches)
        under_way.add(id(pending))
        most.append(len(under_way))
        wait = pending.wait

        def noting_wait(progress: Any) -> list[bytes]:
            try:
                return wait(progress)
            finally:
                under_way.discard(id(pending))

        pending.wait = noting_wait  # type: ignore[method-assign]
        return pending

    monkeypatch.setattr(_sources.NativeSource, "start", noting_start)
    # Casts go through memory, a megabyte at a time.
    state = {name: torch.zeros(1 << 16, dtype=torch.float64) for name in saved}
    reader = Reader(tmp_path, memory_budget=2 << 20, **options)
    load_alone(reader, state)
    assert all(torch.equal(state[name], saved[name].double()) for name in saved) and reader.staged == 40
    assert len(most) > 5 and max(most) == 1, "one read at a time, which has as many threads as were asked for"


class Waiting(MemoryFiles):
    """From its thirtieth stream on it waits for somebody to have heard of those before."""

    def __init__(self, files: dict[str, bytes]) -> None:
        super().__init__(files)
        self.heard = threading.Event()

    @contextlib.contextmanager
    def create_stream(self, path: str, mode: str) -> Iterator[io.BytesIO]:
        with super().create_stream(path, mode) as stream:
            assert len(self.opened) < 30 or self.heard.wait(30), "nobody is told anything"
            yield stream


def test_progress_is_told_while_a_file_system_is_read(tmp_path: Path) -> None:
    save({f"t{number}": torch.randn(1000) for number in range(40)}, tmp_path)
    told, fs = list[Progress](), Waiting(files_of(tmp_path))

    def tell(progress: Progress) -> None:
        told.append(progress)
        fs.heard.set()

    state = {f"t{number}": torch.zeros(1000) for number in range(40)}
    load_alone(Reader("memory://job", fs=fs, use_parallel=False, progress=tell), state)
    done = [progress.bytes for progress in told]
    assert done == sorted(done) and 0 < done[0] < 40 * 4000 and done[-1] == told[-1].bytes_total == 40 * 4000
    finished = collections.Counter(name for progress in told for name in progress.finished)
    assert finished == collections.Counter(list(state))


def test_a_progress_that_raises_ends_a_load_through_a_file_system(tmp_path: Path) -> None:
    save({f"t{number}": torch.randn(10) for number in range(400)}, tmp_path)

    def tell(progress: Progress) -> None:
        raise ValueError(f"enough after {progress.bytes} bytes")

    fs = Counting(files_of(tmp_path))
    reader = Reader("memory://job", fs=fs, use_parallel=False, progress=tell)
    error = cause(load_with(reader, {f"t{number}": torch.zeros(10) for number in range(400)}).error)
    assert isinstance(error, ValueError) and "enough" in str(error)
    assert len(fs.opened) < 400, "the rest was not read"


def test_load_passes_on_what_it_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save({"t": torch.randn(300_000)}, tmp_path)
    told, planner, state = list[Progress](), RecordingPlanner(), {"t": torch.zeros(300_000)}
    load(state, tmp_path, progress=told.append, planner=planner)
    assert told[-1].bytes == told[-1].bytes_total == 1_200_000 and planner.calls
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    load(state, tmp_path, progress=True)
    assert terminal.getvalue().count("100%") == 1
    fs = MemoryFiles(files_of(tmp_path))
    load(state, "memory://job", fs=fs)
    assert fs.opened
    linked = tmp_path / "linked"
    linked.mkdir()
    for file in tmp_path.glob("*.distcp"):
        (linked / file.name).symlink_to(file)
    (linked / ".metadata").write_bytes((tmp_path / ".metadata").read_bytes())
    load(state, linked, follow_links=True)
    with pytest.raises(ShardfeedError, match="link"):
        load(state, linked)
    info = item_of(tmp_path, "t")
    file = tmp_path / info.relative_path
    data = bytearray(file.read_bytes())
    data[info.offset + info.length // 2] ^= 1
    file.write_bytes(data)
    load(state, tmp_path)
    with pytest.raises(ShardfeedError, match="checksum"):
        load(state, tmp_path, verify=True)


def test_a_file_that_cannot_be_opened_is_an_error_of_the_kind_that_torch_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save({"t": torch.randn(10)}, tmp_path)
    file = tmp_path / "__0_0.distcp"
    data = file.read_bytes()

    def failed() -> OSError:
        error = cause(load_with(Reader(tmp_path), {"t": torch.zeros(10)}).error)
        assert isinstance(error, OSError) and error.filename == str(file) and str(file) in str(error), error
        return error

    file.unlink()
    missing = failed()
    assert type(missing) is FileNotFoundError and missing.errno == errno.ENOENT and "copy" in str(missing)
    file.mkdir()
    assert type(failed()) is IsADirectoryError
    file.rmdir()
    # Root may read everything: as if this were somebody else.
    file.write_bytes(data[:10])
    monkeypatch.setattr(_sources.os, "access", lambda path, mode: False)
    denied = failed()
    assert type(denied) is PermissionError and denied.errno == errno.EACCES


def test_safetensors_are_told_from_a_checkpoint_that_is_missing(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"\x02\0\0\0\0\0\0\0{}")
    with pytest.raises(FileNotFoundError, match="there are safetensors files, which this does not load"):
        load({"t": torch.zeros(1)}, tmp_path)
    with pytest.raises(FileNotFoundError, match="no checkpoint is there; give the directory"):
        load({"t": torch.zeros(1)}, tmp_path / "elsewhere")
