"""`.metadata` is read without being unpickled, and becomes what torch would have unpickled."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint import FileSystemReader

from checkpoint_support import VERSION, bits, load_with, save
from shardfeed import ShardfeedError
from shardfeed._native import read_pickle
from shardfeed.checkpoint import Reader, load
from shardfeed.checkpoint._metadata import Unknown

FIXTURES = Path(__file__).parents[2] / "testdata" / "checkpoints" / "fixtures"


def assert_equal_fields(ours: Any, torchs: Any, place: str = "metadata") -> None:
    """Field by field, with the types: dataclasses compare less than they hold."""
    # Torch 2.0 had a class of this name elsewhere, which is still there for such checkpoints.
    assert type(ours).__name__ == type(torchs).__name__, place
    if dataclasses.is_dataclass(torchs):
        # What is not stored is a default of the class; what is stored besides is an attribute.
        names = {field.name for field in dataclasses.fields(torchs)} | vars(ours).keys() | vars(torchs).keys()
        for name in names - {"load_id"}:
            if not hasattr(torchs, name):
                # A list that torch 2.4 did not know: unpickling leaves its objects without, ours have an empty one.
                assert getattr(ours, name) == [], f"{place}.{name}"
                continue
            assert_equal_fields(getattr(ours, name), getattr(torchs, name), f"{place}.{name}")
    elif isinstance(torchs, dict):
        assert list(ours) == list(torchs), place
        for (own_key, own), (key, value) in zip(ours.items(), torchs.items()):
            assert_equal_fields(own_key, key, f"{place} key {key}")
            assert_equal_fields(own, value, f"{place}[{key}]")
    elif isinstance(torchs, (list, tuple)):
        assert len(ours) == len(torchs), place
        for index, (own, value) in enumerate(zip(ours, torchs)):
            assert_equal_fields(own, value, f"{place}[{index}]")
    else:
        assert ours == torchs, place


def some_state() -> dict[str, Any]:
    return {
        "model": {"weight": torch.nn.Parameter(torch.randn(3, 4)), "strided": torch.randn(4, 8)[:, ::2], "none": None},
        "list": [torch.tensor(1), {"deep": torch.zeros(0, 3)}],
        "half": torch.zeros(2, dtype=torch.bfloat16),
        "complex": torch.zeros(2, dtype=torch.complex64),
        "step": 3,
    }


@pytest.mark.parametrize("protocol", range(6))
def test_every_field_is_what_torch_unpickles(tmp_path: Path, protocol: int) -> None:
    path = save(some_state(), tmp_path, thread_count=2) / ".metadata"
    metadata = pickle.loads(path.read_bytes())
    path.write_bytes(pickle.dumps(metadata, protocol))
    torchs = FileSystemReader(tmp_path).read_metadata()
    reader = Reader(tmp_path)
    ours = reader.read_metadata()
    assert_equal_fields(ours, torchs)
    assert ours.storage_meta is not None and ours.storage_meta.load_id == reader.load_id


def metadata_fixtures() -> list[Path]:
    found = sorted(FIXTURES.rglob(".metadata"))
    assert found, "the repository holds fixtures"
    return found


def torchs_metadata(directory: Path) -> Any:
    """Older versions do not know every type of newer ones."""
    try:
        return FileSystemReader(directory).read_metadata()
    except Exception as error:
        pytest.skip(f"torch {torch.__version__} cannot read it: {error}")


@pytest.mark.parametrize("path", metadata_fixtures(), ids=lambda path: path.parent.name)
def test_fixtures_of_every_version(path: Path) -> None:
    torchs = torchs_metadata(path.parent)
    assert_equal_fields(Reader(path.parent).read_metadata(), torchs)


def tensors_of_fixtures() -> dict[str, dict[str, Any]]:
    """By directory: what torch's own reader gave."""
    expected = json.loads((FIXTURES / "expected.json").read_text())
    # Torch's planner cannot read safetensors, and ours stands in for its reader.
    return {name: answer["ok"] for name, answer in expected.items() if "ok" in answer and list((FIXTURES / name).glob("*.distcp"))}


@pytest.mark.parametrize(("name", "entries"), tensors_of_fixtures().items(), ids=list(tensors_of_fixtures()))
@pytest.mark.parametrize("way", [{}, {"use_parallel": False, "verify": True}], ids=str)
def test_fixtures_of_every_version_load_to_the_bit(name: str, entries: dict[str, dict[str, Any]], way: dict[str, Any]) -> None:
    if not (FIXTURES / name / ".metadata").exists() and VERSION < (2, 9):
        pytest.skip("torch before 2.9 does not look for metadata of a rank")
    tensors = {key: entry for key, entry in entries.items() if "object" not in entry}
    if strange := [entry["dtype"] for entry in tensors.values() if not hasattr(torch, entry["dtype"].removeprefix("torch."))]:
        pytest.skip(f"torch {torch.__version__} has no {strange[0]}")
    state = {
        key: torch.zeros(entry["shape"], dtype=getattr(torch, entry["dtype"].removeprefix("torch."))) for key, entry in tensors.items()
    }
    assert state, "there is something to compare"
    load(state, FIXTURES / name, **way)
    for key, tensor in state.items():
        assert hashlib.sha256(bits(tensor)).hexdigest() == entries[key]["sha256"], key


def test_metadata_that_are_a_link_out_or_a_pipe_are_refused(tmp_path: Path) -> None:
    save({"a": torch.ones(2)}, tmp_path / "saved")
    metadata = tmp_path / "saved" / ".metadata"
    metadata.rename(tmp_path / "elsewhere")
    metadata.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ShardfeedError, match=r"\.metadata: it is a link to .*elsewhere, outside of the checkpoint"):
        Reader(tmp_path / "saved").read_metadata()
    assert "a" in Reader(tmp_path / "saved", follow_links=True).read_metadata().state_dict_metadata
    # Also where torch asks for a rank's own next.
    with pytest.raises(ShardfeedError, match="outside of the checkpoint"):
        load({"a": torch.zeros(2)}, tmp_path / "saved")
    metadata.unlink()
    os.mkfifo(metadata)
    with pytest.raises(ShardfeedError, match=r"\.metadata: it is no file"):
        Reader(tmp_path / "saved").read_metadata()


def test_a_checkpoint_that_is_not_there_is_a_file_that_is_not_found(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for name in ("typo", "empty"):
        for ask in (lambda path: load({"a": torch.zeros(1)}, path), lambda path: Reader(path).read_metadata()):
            with pytest.raises(FileNotFoundError, match=rf"no checkpoint is there; give the directory .*{name}/\.metadata") as raised:
                ask(tmp_path / name)
            assert raised.value.filename == str(tmp_path / name / ".metadata")


def test_a_dtype_of_a_newer_torch_is_named(tmp_path: Path) -> None:
    save({"a": torch.ones(2)}, tmp_path)
    metadata = tmp_path / ".metadata"
    metadata.write_bytes(metadata.read_bytes().replace(b"float32", b"float99"))
    with pytest.raises(ShardfeedError, match=r"\.metadata: torch.float99 is no dtype that torch .* knows; load it with one that does, or copy the checkpoint again$"):
        Reader(tmp_path).read_metadata()


def test_a_layout_or_memory_format_of_a_newer_torch_is_named(tmp_path: Path) -> None:
    save({"a": torch.ones(2)}, tmp_path)
    metadata = tmp_path / ".metadata"
    good = metadata.read_bytes()
    for old, new, said in [
        (b"torch.strided", b"torch.stridex", r"torch\.stridex is no layout that torch .* knows"),
        (b"_MEM_FORMAT_ENCODING\x94\x93\x94K\x00", b"_MEM_FORMAT_ENCODING\x94\x93\x94K\x63", "no memory format that this version of Shardfeed knows"),
    ]:
        assert old in good
        metadata.write_bytes(good.replace(old, new))
        with pytest.raises(ShardfeedError, match=rf"{said}; load it with one that does"):
            Reader(tmp_path).read_metadata()


def test_a_rank_has_metadata_of_its_own(tmp_path: Path) -> None:
    save({"a": torch.ones(2)}, tmp_path)
    os.rename(tmp_path / ".metadata", tmp_path / "__3.metadata")
    assert list(Reader(tmp_path).read_metadata(rank=3).state_dict_metadata) == ["a"]
    with pytest.raises(FileNotFoundError):
        Reader(tmp_path).read_metadata()


class Evil:
    """Leaves a trace if it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def test_nothing_in_a_pickle_runs(tmp_path: Path) -> None:
    path = save({"a": torch.ones(2)}, tmp_path / "saved") / ".metadata"
    trace = tmp_path / "trace"
    path.write_bytes(pickle.dumps(Evil(trace)))
    with pytest.raises(ShardfeedError, match="not the metadata of a distributed checkpoint"):
        Reader(path.parent).read_metadata()
    assert not trace.exists()
    # Unpickling is what would have run it.
    pickle.loads(path.read_bytes())
    assert trace.exists()


def test_what_is_not_known_stays_a_name_and_the_rest_is_read(tmp_path: Path) -> None:
    path = save({"a": torch.ones(2)}, tmp_path / "saved") / ".metadata"
    metadata = pickle.loads(path.read_bytes())
    trace = tmp_path / "trace"
    metadata.mcore_data = {"a": {"shape": (2, 3), "what": Evil(trace)}}
    path.write_bytes(pickle.dumps(metadata))
    ours = Reader(path.parent).read_metadata()
    assert ours.mcore_data["a"]["shape"] == (2, 3)  # type: ignore[attr-defined]
    assert isinstance(ours.mcore_data["a"]["what"], Unknown)  # type: ignore[attr-defined]
    state = {"a": torch.zeros(2)}
    assert load_with(Reader(path.parent), state).error is None and state["a"].tolist() == [1, 1]
    assert not trace.exists()


def test_metadata_cut_anywhere_or_changed_are_refused_by_name(tmp_path: Path) -> None:
    path = save(some_state(), tmp_path) / ".metadata"
    whole = path.read_bytes()
    for length in range(0, len(whole), 7):
        path.write_bytes(whole[:length])
        with pytest.raises(ShardfeedError, match=r"\.metadata: "):
            Reader(tmp_path).read_metadata()
    for place in range(0, len(whole), 5):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :])
        try:
            Reader(tmp_path).read_metadata()
        except ShardfeedError as error:
            assert ".metadata: " in str(error)


def in_many_places() -> list[Any]:
    """Little to write down, and four million lists for whoever looks at each place by itself."""
    value: list[Any] = []
    for _ in range(22):
        value = [value, value]
    return value


def test_a_value_that_lies_in_many_places_is_made_once(tmp_path: Path) -> None:
    path = save({"a": torch.ones(2)}, tmp_path) / ".metadata"
    metadata = pickle.loads(path.read_bytes())
    metadata.planner_data, metadata.more = {"a": in_many_places()}, in_many_places()
    path.write_bytes(pickle.dumps(metadata))
    planner_data = Reader(tmp_path).read_metadata().planner_data
    assert planner_data["a"][0] is planner_data["a"][1]
    state = {"a": torch.zeros(2)}
    load(state, tmp_path)
    assert state["a"].tolist() == [1, 1]


def test_errors_show_the_beginning_of_what_lies_in_many_places(tmp_path: Path) -> None:
    path = save({"a": torch.ones(2)}, tmp_path) / ".metadata"
    saved = path.read_bytes()
    for place in ("storage_data", "state_dict_metadata", "size", "root"):
        metadata: Any = pickle.loads(saved)
        if place == "size":
            metadata.state_dict_metadata["a"].size = in_many_places()
        elif place == "root":
            metadata = in_many_places()
        else:
            setattr(metadata, place, {"a": in_many_places()})
        path.write_bytes(pickle.dumps(metadata))
        with pytest.raises(ShardfeedError) as raised:
            Reader(tmp_path).read_metadata()
        assert len(str(raised.value)) < 1000 + len(str(tmp_path))


def test_a_value_that_holds_itself_is_refused(tmp_path: Path) -> None:
    path = save({"a": torch.ones(2)}, tmp_path) / ".metadata"
    metadata = pickle.loads(path.read_bytes())
    metadata.planner_data = []
    metadata.planner_data.append({"a": metadata.planner_data})
    path.write_bytes(pickle.dumps(metadata))
    with pytest.raises(ShardfeedError, match=r"\.metadata: not a readable pickle: a value that holds itself"):
        Reader(tmp_path).read_metadata()


def pickled_chain(kind: str, length: int) -> bytes:
    """Objects that lie in each other as each other's state, arguments or class, or tuples, as a pickle."""
    make, empty = b"cfoo\nBar\n", b")"
    if kind == "state":
        return b"\x80\x04" + (make + b")\x81") * length + b"b" * (length - 1) + b"."
    if kind == "args":
        return b"\x80\x04" + make * length + empty + b"R\x85" * length + b"."
    if kind == "callable":
        return b"\x80\x04" + make + b")R" * length + b"."
    return b"\x80\x04}" + empty + b"\x85" * length + b"Ns."


@pytest.mark.parametrize("kind", ["state", "args", "callable", "key"])
def test_values_that_lie_in_each_other_without_end_are_refused(kind: str) -> None:
    # In a process of its own: it used to take the interpreter with it.
    script = """
import sys
from shardfeed import ShardfeedError
from shardfeed._native import read_pickle
try:
    read_pickle(sys.stdin.buffer.read())
except ShardfeedError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", script], input=pickled_chain(kind, 100_000), capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stdout.decode().strip()) == (
        0,
        "not a readable pickle: values that lie in each other more than 200 deep",
    ), done.stderr
    # One that is deep, but not too deep.
    read_pickle(pickled_chain(kind, 60))


def test_a_value_that_is_shared_counts_as_deep_as_it_is_everywhere() -> None:
    deep: list[Any] = []
    for _ in range(150):
        deep = [deep]
    for around in (40, 60):
        outer: Any = [deep]
        for _ in range(around):
            outer = [outer]
        # The deep one is known already when the outer one is looked at.
        if around == 40:
            read_pickle(pickle.dumps([deep, outer]))
        else:
            with pytest.raises(ShardfeedError, match="more than 200 deep"):
                read_pickle(pickle.dumps([deep, outer]))


def test_a_small_key_that_takes_ages_to_hash_is_refused() -> None:
    key: tuple[Any, ...] = ()
    for _ in range(22):
        key = (key, key)
    # Not in a dictionary here, which would hash it.
    pickled = b"\x80\x04}" + pickle.dumps(key, protocol=2)[2:-1] + b"Ns."
    with pytest.raises(ShardfeedError, match="a key of more than 1024 values"):
        read_pickle(pickled)
