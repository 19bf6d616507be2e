"""Each argument of `TokenLoader` does what it says, seen from its batches."""

import base64
import contextlib
import itertools
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
import torch.distributed.checkpoint as dcp
from shardfeed import Batch, ShardfeedError, TokenLoader, checkpoint
from shardfeed.torch import TokenDataset
from torch.utils.data import DataLoader

SETTINGS: dict[str, Any] = {"seq_len": 32, "global_batch": 8, "seed": 7}

#: What is no label.
IGNORED = -100


def batches(data: str, **others: Any) -> list[Batch]:
    return list(TokenLoader(data, **{**SETTINGS, **others}))


def ids(data: str, **others: Any) -> list[int]:
    """All ids of an epoch, one after another."""
    return torch.cat([batch["input_ids"].flatten() for batch in batches(data, **others)]).tolist()


def test_eos_id_ends_each_document(data: str, rows: list[list[int]]) -> None:
    without = ids(data, shuffle=False)
    assert without[: len(rows[0]) + 1] == [*rows[0], rows[1][0]]
    with_end = ids(data, shuffle=False, eos_id=2)
    assert with_end[: len(rows[0]) + 2] == [*rows[0], 2, rows[1][0]]
    assert 2 not in without and with_end.count(2) == len(rows)


def test_an_eos_id_that_would_be_nowhere_is_refused(data: str) -> None:
    with pytest.raises(ValueError, match="eos_id 2 would be nowhere"):
        TokenLoader(data, **SETTINGS, packing="pad", labels="unshifted", eos_id=2)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"seq_len": "32"}, "seq_len is '32', of type str; it is a whole number"),
        ({"seq_len": 32.0}, "seq_len is 32.0, of type float; it is a whole number"),
        ({"global_batch": True}, "global_batch is True, of type bool; it is a whole number"),
        ({"rank": "0", "world_size": 1}, "rank is '0', of type str; it is a whole number"),
        ({"memory_budget": "8G"}, "memory_budget is '8G', of type str; it is a whole number"),
        ({"pad_id": None}, "pad_id is None, and has to be given"),
        ({"source": None}, "source is None, and has to be given"),
        ({"shuffle": 1}, "shuffle is 1, of type int; it is True or False"),
        ({"dtype": torch.int64}, "dtype is torch.int64, of type dtype; it is a word"),
        ({"progress": True}, "progress is True, of type bool; it is something to call"),
        ({"mesh": 3}, "mesh is of type int; give a DeviceMesh"),
    ],
    ids=str,
)
def test_what_is_of_another_kind_is_refused_by_its_name(data: str, given: dict[str, Any], said: str) -> None:
    for make in (TokenLoader, TokenDataset):
        with pytest.raises(TypeError, match=f"^{re.escape(said)}"):
            make(**{"source": data, **SETTINGS, **given})


def test_whole_numbers_of_other_libraries_are_whole_numbers(data: str) -> None:
    numbers = {"seq_len": torch.tensor(32), "global_batch": torch.tensor(8).numpy()[()], "seed": torch.tensor(7)}
    assert torch.equal(next(iter(TokenLoader(data, **numbers)))["input_ids"], batches(data)[0]["input_ids"])
    # And so are what is true and what is not.
    unshuffled = TokenLoader(data, **SETTINGS, shuffle=numpy.bool_(False))  # type: ignore[arg-type]
    assert torch.equal(next(iter(unshuffled))["input_ids"], batches(data, shuffle=False)[0]["input_ids"])


def test_numbers_of_another_kind_are_refused_by_their_name_later_too(data: str) -> None:
    loader = TokenLoader(data, **SETTINGS)
    for call, name in ((loader.set_epoch, "epoch"), (loader.explain, "step"), (lambda step: loader.skip(0, step), "stop")):
        with pytest.raises(TypeError, match=f"^{name} is '3', of type str"):
            call("3")  # type: ignore[arg-type]
    for arguments in ({"num_workers": "2"}, {"memory_budget": "1G"}):
        with pytest.raises(TypeError, match="of type str; it is a whole number"):
            checkpoint.Reader(data, **arguments)


def test_what_is_no_state_is_refused_with_what_is_one(data: str) -> None:
    loader = TokenLoader(data, **SETTINGS)
    state = loader.state_dict()
    for other in (None, "{}", {"loader": state}):
        with pytest.raises(TypeError, match="is no state of a TokenLoader; give what its state_dict"):
            loader.load_state_dict(other)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="the state has other than plain values"):
        loader.load_state_dict({**state, "seed": torch.tensor(7)})
    for after in (dict(next(iter(loader))), 3):
        with pytest.raises(TypeError, match="give a batch as the loader handed it out"):
            loader.state_dict(after=after)  # type: ignore[arg-type]


def test_places_that_are_elsewhere_are_refused_with_what_to_do(data: str, tmp_path: Path) -> None:
    for source, said in (
        ("s3://bucket/data", "URLs are not read yet"),
        ("~/data", "does not stand for the home directory"),
        ([data], "a directory in a list of files"),
        ([f"{data}/*.parquet"], "a glob in a list of files"),
    ):
        with pytest.raises(ValueError, match=said):
            TokenLoader(source, **SETTINGS)
    for cache in (tmp_path, ""):
        with pytest.raises(ValueError, match="the manifest cannot be kept in"):
            TokenLoader(data, **SETTINGS, cache=cache)


def test_a_directory_may_have_any_name(data: str, tmp_path: Path) -> None:
    odd = tmp_path / os.fsdecode(b"caf\xe9")
    shutil.copytree(data, odd)
    loader = TokenLoader(odd, **SETTINGS, cache=odd / "kept")
    assert torch.equal(next(iter(loader))["input_ids"], batches(data)[0]["input_ids"]) and (odd / "kept").is_file()


def test_pad_id_stands_where_there_is_no_token(data: str) -> None:
    last = batches(data, pad_id=1)[-1]
    padding = SETTINGS["seq_len"] * SETTINGS["global_batch"] - last.tokens
    assert padding > 0 and int((last["input_ids"] == 1).sum()) == padding
    assert bool((last["labels"][last["input_ids"] == 1] == IGNORED).all())


def test_labels_are_the_next_id_or_the_same(data: str) -> None:
    shifted, unshifted = batches(data)[0], batches(data, labels="unshifted")[0]
    is_label = unshifted["labels"] != IGNORED
    assert torch.equal(unshifted["labels"][is_label], unshifted["input_ids"][is_label])
    # The first token of a document is nobody's next.
    assert bool((unshifted["position_ids"][~is_label] == 0).all()) and int(is_label.sum()) > 100
    assert torch.equal(shifted["input_ids"], unshifted["input_ids"])
    next_ids, labels = shifted["input_ids"][:, 1:], shifted["labels"][:, :-1]
    assert torch.equal(labels[labels != IGNORED], next_ids[labels != IGNORED]) and int((labels != IGNORED).sum()) > 100


def test_the_tail_is_padded_dropped_wrapped_or_an_error(data: str) -> None:
    padded, dropped, wrapped = (batches(data, tail=tail) for tail in ("pad", "drop", "wrap"))
    of_step = SETTINGS["seq_len"] * SETTINGS["global_batch"]
    assert padded[-1].tokens < of_step
    for others in (dropped, wrapped[:-1]):
        assert [batch["input_ids"].tolist() for batch in others] == [batch["input_ids"].tolist() for batch in padded[:-1]]
    whole = {tuple(row) for batch in padded for row in batch["input_ids"].tolist()}
    # Sequences that were there before stand in the place of those that there are not.
    assert sum(tuple(row) in whole for row in wrapped[-1]["input_ids"].tolist()) == SETTINGS["global_batch"]
    assert wrapped[-1].tokens > padded[-1].tokens
    with pytest.raises(ValueError, match="tail"):
        TokenLoader(data, **SETTINGS, tail="error")


def test_packing_pad_gives_each_document_a_sequence(data: str, rows: list[list[int]]) -> None:
    sequences = [row for batch in batches(data, packing="pad", shuffle=False, pad_id=1, seq_len=300) for row in batch["input_ids"].tolist()]
    assert sequences[: len(rows)] == [row + [1] * (300 - len(row)) for row in rows]


def test_lanes_and_window_are_those_of_the_state_and_change_the_order(data: str) -> None:
    plain = ids(data)
    for given in ({"lanes": 8}, {"window": 16}):
        assert TokenLoader(data, **SETTINGS, **given).state_dict().items() >= given.items()
        other = ids(data, **given)
        assert other != plain and sorted(other) == sorted(plain)
    assert TokenLoader(data, **SETTINGS, lanes=8, window=16).state_dict().items() >= {"lanes": 8, "window": 16}.items()


def test_seed_and_shuffle_change_the_order(data: str, rows: list[list[int]]) -> None:
    assert ids(data, seed=8) != ids(data)
    in_order = [token for row in rows for token in row]
    assert ids(data, shuffle=False)[: len(in_order)] == in_order


def test_dtype_is_that_of_the_tensors(data: str) -> None:
    for name in ("int64", "int32"):
        assert {value.dtype for value in batches(data, dtype=name)[0].values()} == {getattr(torch, name)}


def test_on_corrupt_mask_pads_over_what_is_damaged(data: str, tmp_path: Path) -> None:
    copy = tmp_path / "data"
    shutil.copytree(data, copy)
    whole = ids(str(copy), cache="off")
    file = sorted(copy.glob("*.parquet"))[0]
    stored = bytearray(file.read_bytes())
    # The head of the first page, which nothing can be made of then.
    stored[4:40] = bytes([0xFF] * 36)
    file.write_bytes(stored)
    with pytest.raises(ShardfeedError, match=file.name):
        ids(str(copy), cache="off")
    loader = TokenLoader(str(copy), **SETTINGS, on_corrupt="mask", cache="off")
    masked = torch.cat([batch["input_ids"].flatten() for batch in loader]).tolist()
    assert loader.stats()["masked_row_groups"] >= 1
    assert len(masked) == len(whole) and {(new, old) for new, old in zip(masked, whole, strict=True) if new != old} <= {(0, old) for old in whole}
    assert masked.count(0) > whole.count(0)


def test_cache_is_where_the_manifest_is_kept(data: str, tmp_path: Path) -> None:
    copy = tmp_path / "data"
    copy.mkdir()
    for file in Path(data).glob("*.parquet"):
        shutil.copy(file, copy)
    before = set(tmp_path.rglob("*"))
    TokenLoader(str(copy), **SETTINGS, cache="off")
    assert set(tmp_path.rglob("*")) == before
    TokenLoader(str(copy), **SETTINGS, cache=tmp_path / "manifest")
    assert set(tmp_path.rglob("*")) - before == {tmp_path / "manifest"}
    TokenLoader(str(copy), **SETTINGS, cache="auto")
    assert len(set(tmp_path.rglob("*")) - before) > 1


def test_another_global_batch_goes_on_with_the_sequences_that_are_left(data: str) -> None:
    sequences = [row for batch in batches(data) for row in batch["input_ids"].tolist()]
    loader = TokenLoader(data, **SETTINGS)
    taken = [batch for _, batch in zip(range(3), loader, strict=False)]
    larger = TokenLoader(data, **{**SETTINGS, "global_batch": 12})
    larger.load_state_dict(loader.state_dict())
    rest = list(larger)
    assert [batch.step for batch in rest[:2]] == [3, 4] and rest[0]["input_ids"].shape == (12, 32)
    seen = [row for batch in [*taken, *rest] for row in batch["input_ids"].tolist()]
    real = [row for row in sequences if any(row)]
    # Within a step rows may stand in another order.
    assert seen[:24] == sequences[:24] and sorted(row for row in seen if any(row)) == sorted(real)


def test_a_state_with_skipped_steps_goes_through_a_checkpoint(data: str, tmp_path: Path) -> None:
    loader = TokenLoader(data, **SETTINGS)
    loader.skip(3, 5)
    iterator = iter(loader)
    assert [next(iterator).step for _ in range(2)] == [0, 1]
    dcp.save({"loader": loader}, checkpoint_id=tmp_path / "saved")
    for load in (
        lambda state: dcp.load(state, storage_reader=checkpoint.Reader(tmp_path / "saved")),
        lambda state: checkpoint.load(state, tmp_path / "saved"),
    ):
        resumed = TokenLoader(data, **SETTINGS)
        load({"loader": resumed})
        assert resumed.state_dict() == loader.state_dict()
        assert [batch.step for batch, _ in zip(resumed, range(3), strict=False)] == [2, 5, 6]


def test_a_memory_budget_changes_no_batch_and_one_that_is_too_small_is_refused_with_what_is_needed(data: str) -> None:
    expected = [batch["input_ids"].tolist() for batch in batches(data)]
    with pytest.raises(ValueError, match="memory budget") as refused:
        TokenLoader(data, **SETTINGS, memory_budget=1000)
    needed = max(int(number.replace(",", "")) for number in re.findall(r"\d[\d,]*", str(refused.value)))
    assert needed > 1000
    assert [batch["input_ids"].tolist() for batch in batches(data, memory_budget=needed)] == expected
    with pytest.raises(ValueError, match="memory budget"):
        TokenLoader(data, **SETTINGS, memory_budget=needed // 2)


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[tuple[int, int]]:
    """A server: its port and its process."""
    if shutil.which("etcd") is None:
        pytest.skip("there is no etcd")
    with contextlib.ExitStack() as sockets:
        port, peers = (sockets.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1] for _ in range(2))
    own, peer = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{peers}"
    command = ["etcd", "--data-dir", str(tmp_path / "etcd"), "--listen-client-urls", own, "--advertise-client-urls", own]
    command += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}"]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{own}/health", timeout=5) as answer:
                if answer.status == 200:
                    break
            time.sleep(0.05)
        yield port, server.pid
    finally:
        server.kill()
        server.wait()


def stored(port: int) -> str:
    """All keys and values of a server."""
    everything = json.dumps({"key": base64.b64encode(b"\0").decode(), "range_end": base64.b64encode(b"\0").decode()}).encode()
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/v3/kv/range", everything, timeout=30) as answer:
        found = json.load(answer).get("kvs", [])
    return "\n".join(base64.b64decode(pair[name]).decode(errors="replace") for pair in found for name in ("key", "value") if name in pair)


def reporting(data: str, port: int, kind: Any = TokenLoader) -> Any:
    """A loader, or a data set, that tells a coordinator how it does."""
    try:
        return kind(data, **SETTINGS, coordinator=f"etcd://127.0.0.1:{port}/run-7")
    except ValueError as error:
        assert "cargo feature etcd" in str(error)
        pytest.skip("the package was built without etcd")


def test_a_coordinator_hears_of_the_rank_and_changes_no_batch(data: str, etcd: tuple[int, int]) -> None:
    expected = [batch["input_ids"].tolist() for batch in batches(data)]
    port, _ = etcd
    loader = reporting(data, port)
    assert [batch["input_ids"].tolist() for batch in loader] == expected
    deadline = time.monotonic() + 60
    while "run-7" not in stored(port) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert "run-7" in stored(port) and loader.stats()["coordinator_trouble"] is None
    assert str(port) not in repr(loader)


def test_of_workers_of_a_dataloader_one_tells_the_coordinator(data: str, etcd: tuple[int, int]) -> None:
    port, _ = etcd
    loop = iter(DataLoader(reporting(data, port, TokenDataset), batch_size=None, num_workers=2))
    next(loop)
    deadline = time.monotonic() + 60
    while not re.search(r'"samples":[1-9]', stored(port).split("/worker/")[-1]) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert re.search(r'"samples":[1-9]', stored(port).split("/worker/")[-1]), stored(port)


def test_other_threads_go_on_while_a_loader_takes_leave_of_a_coordinator_that_does_not_answer(data: str, etcd: tuple[int, int]) -> None:
    port, server = etcd
    loader = reporting(data, port)
    next(iter(loader))
    deadline = time.monotonic() + 60
    while "run-7" not in stored(port) and time.monotonic() < deadline:
        time.sleep(0.05)
    ticks = [time.monotonic()]
    is_over = threading.Event()

    def tick() -> None:
        while not is_over.wait(0.01):
            ticks.append(time.monotonic())

    thread = threading.Thread(target=tick)
    thread.start()
    os.kill(server, signal.SIGSTOP)
    began = time.monotonic()
    del loader
    took = time.monotonic() - began
    ticks.append(began + took)
    os.kill(server, signal.SIGCONT)
    is_over.set()
    thread.join()
    pauses = [after - before for before, after in itertools.pairwise(ticks)]
    assert took > 0.5, "it waited for the coordinator"
    assert max(pauses) < took / 2


def test_a_coordinator_that_is_none_is_refused(data: str) -> None:
    with pytest.raises(ValueError, match="etcd://"):
        TokenLoader(data, **SETTINGS, coordinator="http://127.0.0.1:2379/job")
