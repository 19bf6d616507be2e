"""What users call besides `dcp.load`: inspect, load, install, progress, file systems, workers."""

from __future__ import annotations

import gc
import io
import os
import pickle
import subprocess
import sys
import time
import weakref
from pathlib import Path
from typing import Any

import pytest
import shardfeed
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import FileSystemReader, _storage_utils, format_utils

import shardfeed.checkpoint
from checkpoint_support import MemoryFiles, RecordingPlanner, load_with, same, save
from shardfeed import ShardfeedError
from shardfeed.checkpoint import Progress, Reader, get_memory_aware_workers, get_optimal_workers, inspect, install, load
from shardfeed.checkpoint._progress import Bar

# Children import the package that the tests import.
PACKAGE = str(Path(shardfeed.__file__).parents[1])


def run(script: str) -> str:
    done = subprocess.run([sys.executable, "-c", script], env={**os.environ, "PYTHONPATH": PACKAGE}, text=True, capture_output=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_inspecting_needs_no_torch(tmp_path: Path) -> None:
    save({"a": torch.zeros(3, 4), "n": 1}, tmp_path)
    script = f"""
import sys
import weakref
sys.modules["torch"] = None
import shardfeed.checkpoint
print(shardfeed.checkpoint.inspect({str(tmp_path)!r})["totals"]["tensors"], "pyarrow" in sys.modules)
try:
    shardfeed.checkpoint.Reader
except ImportError:
    print("no torch")
"""
    assert run(script) == "1 False\nno torch\n"


def test_importing_shardfeed_imports_neither_torch_nor_pyarrow() -> None:
    assert run("import sys, shardfeed, shardfeed.checkpoint; print('torch' in sys.modules, 'pyarrow' in sys.modules)") == "False False\n"


def test_inspect_says_what_is_there(tmp_path: Path) -> None:
    save({"model": {"w": torch.zeros(3, 4, dtype=torch.bfloat16)}, "b": torch.zeros(5), "n": 1}, tmp_path)
    found = inspect(tmp_path)
    assert found["totals"]["tensors"] == 2 and found["totals"]["objects"] == 1 and found["totals"]["files"] == 1
    assert found["totals"]["tensor_bytes"] == 24 + 20
    assert found["totals"]["file_bytes"] == (tmp_path / "__0_0.distcp").stat().st_size
    tensor = found["tensors"]["model.w"]
    assert (tensor["dtype"], tensor["shape"], tensor["bytes"]) == ("bfloat16", [3, 4], 24)
    (chunk,) = tensor["chunks"]
    assert (chunk["offsets"], chunk["sizes"], chunk["file"], chunk["transforms"]) == ([0, 0], [3, 4], "__0_0.distcp", [])
    stored = Reader(tmp_path).read_metadata().storage_data
    info = next(info for index, info in stored.items() if index.fqn == "model.w")
    assert (chunk["offset"], chunk["length"]) == (info.offset, info.length)
    assert list(found["objects"]) == ["n"] and found["files"] == {"__0_0.distcp": found["totals"]["file_bytes"]}
    with pytest.raises(FileNotFoundError):
        inspect(tmp_path / "nowhere")
    (tmp_path / "__0_0.distcp").unlink()
    with pytest.raises(ShardfeedError, match="__0_0.distcp: the file is missing"):
        inspect(tmp_path)


class Counter:
    """Something with a state of its own."""

    def __init__(self) -> None:
        self.count = torch.zeros(1)

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count = state["count"] + 0


def test_load_is_torchs_load_without_a_process_group(tmp_path: Path) -> None:
    saved = Counter()
    saved.count += 5
    save({"counter": saved, "w": torch.ones(2), "step": 9}, tmp_path)
    counter = Counter()
    state: dict[str, Any] = {"counter": counter, "w": torch.zeros(2), "step": 0}
    target = state["w"]
    load(state, tmp_path)
    assert state["counter"] is counter and counter.count.item() == 5
    assert state["w"] is target and target.tolist() == [1, 1] and state["step"] == 9


def test_readers_can_be_pickled(tmp_path: Path) -> None:
    save({"a": torch.ones(3)}, tmp_path)
    reader = pickle.loads(pickle.dumps(Reader(tmp_path, num_workers=2, verify=True)))
    assert type(reader) is Reader and isinstance(reader, FileSystemReader)
    assert (reader.num_workers, reader.verify, reader.checkpoint_id) == (2, True, tmp_path)
    state = {"a": torch.zeros(3)}
    assert load_with(reader, state).error is None and state["a"].sum() == 3


def test_read_data_parallel_takes_a_number_of_workers(tmp_path: Path) -> None:
    save({"a": torch.ones(3)}, tmp_path)
    reader, planner, state = Reader(tmp_path, use_parallel=False), RecordingPlanner(), {"a": torch.zeros(3)}
    metadata = reader.read_metadata()
    planner.set_up_planner(state, metadata, True)
    reader.set_up_storage_reader(metadata, True)
    plan = reader.prepare_global_plan([reader.prepare_local_plan(planner.create_local_plan())])[0]
    assert reader.read_data_parallel(plan, planner, num_workers=2).wait() is None
    assert state["a"].sum() == 3


def test_install_makes_torch_use_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save({"a": torch.ones(3), "n": 2}, tmp_path / "saved")
    seen: list[Path] = []
    own = Reader.read_data

    def noting(self: Reader, plan: Any, planner: Any) -> Any:
        seen.append(self.path)
        return own(self, plan, planner)

    monkeypatch.setattr(Reader, "read_data", noting)
    uninstall = install()
    try:
        state = {"a": torch.zeros(3), "n": 0}
        dcp.load(state, checkpoint_id=tmp_path / "saved")
        assert state["n"] == 2 and state["a"].sum() == 3
        format_utils.dcp_to_torch_save(tmp_path / "saved", tmp_path / "one.pt")
        assert torch.load(tmp_path / "one.pt")["a"].sum() == 3
    finally:
        uninstall()
    assert seen == [tmp_path / "saved"] * 2
    dcp.load({"a": torch.zeros(3), "n": 0}, checkpoint_id=tmp_path / "saved")
    assert len(seen) == 2
    assert _storage_utils.FileSystemReader is FileSystemReader is format_utils.FileSystemReader


@pytest.mark.parametrize("planner", [None, RecordingPlanner])
def test_any_file_system_will_do(tmp_path: Path, planner: Any) -> None:
    saved = {"a": torch.randn(30, 20), "b": torch.randn(5).to(torch.bfloat16), "n": 4}
    save(saved, tmp_path, thread_count=2)
    files = {f"memory://job/{path.name}": path.read_bytes() for path in tmp_path.iterdir()}
    fs = MemoryFiles(files)
    state = {"a": torch.zeros(30, 20), "b": torch.zeros(5), "n": 0}
    reader = Reader("memory://job", fs=fs, num_workers=2)
    outcome = load_with(reader, state, planner and planner())
    assert outcome.error is None, outcome.error
    assert torch.equal(state["a"], saved["a"]) and torch.equal(state["b"], saved["b"].float()) and state["n"] == 4
    assert set(fs.opened) == set(files)
    cut = {name: data[:2000] if name.endswith("__0_0.distcp") else data for name, data in files.items()}
    failed = load_with(Reader("memory://job", fs=MemoryFiles(cut)), {"a": torch.zeros(30, 20), "b": torch.zeros(5), "n": 0})
    assert "__0_0.distcp" in str(failed.error) and "cut short" in str(failed.error)


@pytest.mark.parametrize("planner", [None, RecordingPlanner])
@pytest.mark.parametrize("way", [{}, {"use_parallel": False}, {"memory_budget": 1000}], ids=str)
def test_progress_reaches_the_total(tmp_path: Path, planner: Any, way: dict[str, Any]) -> None:
    saved = {f"t{index}": torch.randn(100) for index in range(10)} | {"n": 4}
    save(saved, tmp_path)
    told: list[Progress] = []
    state = {name: torch.zeros(100) if name != "n" else 0 for name in saved}
    outcome = load_with(Reader(tmp_path, progress=told.append, **way), state, planner and planner())
    assert outcome.error is None
    assert [progress.bytes for progress in told] == sorted(progress.bytes for progress in told)
    assert told[-1].bytes == told[-1].bytes_total > 4000
    assert sorted(name for progress in told for name in progress.finished) == sorted(saved), "each name once"


def test_a_progress_that_raises_ends_the_load(tmp_path: Path) -> None:
    save({"a": torch.ones(3)}, tmp_path)

    def stop(progress: Progress) -> None:
        raise RuntimeError("enough")

    outcome = load_with(Reader(tmp_path, progress=stop), {"a": torch.zeros(3)})
    assert "enough" in str(outcome.error)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_bar_is_drawn_on_terminals_only() -> None:
    terminal, pipe = Terminal(), io.StringIO()
    for out in (terminal, pipe):
        bar = Bar(out)
        bar(Progress(1 << 20, 4 << 20))
        bar(Progress(4 << 20, 4 << 20))
    assert pipe.getvalue() == ""
    assert " 25% of 4.0 MiB" in terminal.getvalue() and terminal.getvalue().endswith("\n")


def test_a_bar_is_drawn_twenty_times_a_second_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    terminal = Terminal()
    bar = Bar(terminal)
    for step in range(1, 1001):
        bar(Progress(step, 1000))
        now += 0.001
    assert 20 <= terminal.getvalue().count("\r") <= 21
    assert "100%" in terminal.getvalue(), "the last one is always drawn"


@pytest.mark.parametrize("objects", [0, 1])
def test_a_bar_is_full_once_whatever_is_told_after_that(tmp_path: Path, objects: int) -> None:
    save({"a": torch.ones(1000), "b": torch.ones(1000)} | {f"n{index}": index for index in range(objects)}, tmp_path)
    terminal = Terminal()
    state = {"a": torch.zeros(1000), "b": torch.zeros(1000)} | {f"n{index}": None for index in range(objects)}
    assert load_with(Reader(tmp_path, progress=Bar(terminal)), state).error is None
    assert terminal.getvalue().count("100%") == terminal.getvalue().count("\n") == 1


def test_progress_true_is_quiet_where_there_is_no_terminal(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    save({"a": torch.ones(3)}, tmp_path)
    state = {"a": torch.zeros(3)}
    assert load_with(Reader(tmp_path, progress=True), state).error is None and state["a"].sum() == 3
    assert "loading" not in capfd.readouterr().err


def test_workers() -> None:
    cores = len(os.sched_getaffinity(0))
    assert get_optimal_workers(1) == 1
    assert get_optimal_workers(1000) == min(cores, 32)
    assert get_optimal_workers(1000, max_workers=1) == 1
    assert get_memory_aware_workers(1e12) == 1
    assert get_memory_aware_workers(1) == min(cores, 32)
    for wrong in (lambda: get_optimal_workers(-1), lambda: get_memory_aware_workers(1, max_workers=0)):
        with pytest.raises(ValueError):
            wrong()


def test_everything_that_is_named_is_there() -> None:
    for name in shardfeed.checkpoint.__all__:
        assert getattr(shardfeed.checkpoint, name).__doc__ or name == "TellProgress", name
    with pytest.raises(AttributeError):
        shardfeed.checkpoint.nothing  # noqa: B018


def test_large_tensors_in_blocks_on_threads(tmp_path: Path) -> None:
    saved = {"a": torch.randn(3000, 1000), "b": torch.randn(1000, 3000).t()}
    save(saved, tmp_path)
    same(tmp_path, lambda: {"a": torch.zeros(3000, 1000), "b": torch.zeros(3000, 1000)})


def test_what_was_loaded_is_let_go_of_with_its_last_user(tmp_path: Path) -> None:
    dcp.save({"a": torch.arange(1000)}, checkpoint_id=tmp_path / "saved")
    for _ in range(5):
        state = {"a": torch.zeros(1000, dtype=torch.int64)}
        held = weakref.ref(state["a"])
        load(state, tmp_path / "saved")
        assert held() is state["a"] and int(state["a"][-1]) == 999
        del state
        gc.collect()
        assert held() is None, "the reader keeps nothing"
