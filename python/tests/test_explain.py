"""What a loader says of itself: where the sequences of a step are from, and what was done so far."""

from __future__ import annotations

import functools
import itertools
import os
import re
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
import torch
from conftest import write_data
from shardfeed import Batch, TokenLoader
from test_arguments import etcd, reporting  # noqa: F401

SETTINGS: dict[str, Any] = {"seq_len": 32, "global_batch": 8, "seed": 7}

#: No id of a row.
EOS = 2

#: The epoch is one sequence then, and each row group is read once.
AT_ONCE: dict[str, Any] = {"seq_len": 100_000, "global_batch": 1, "shuffle": False}

ROW_GROUPS = 20


@functools.cache
def row_group_of(file: Path, row_group: int) -> list[list[int]]:
    """As pyarrow reads it; a row that is null is as an empty one."""
    return [row or [] for row in pyarrow.parquet.ParquetFile(file).read_row_group(row_group)["input_ids"].to_pylist()]


@pytest.fixture(scope="module")
def gappy(rows: list[list[int]], tmp_path_factory: pytest.TempPathFactory) -> str:
    """The data of all tests with empty and null rows among them, which count as rows, and have no tokens."""
    directory = tmp_path_factory.mktemp("gappy")
    for file in range(5):
        of_file: list[list[int] | None] = []
        for number, row in enumerate(rows[60 * file : 60 * file + 60]):
            of_file += [[], row] if number % 7 == 3 else [row, None] if number % 11 == 5 else [row]
        column = pyarrow.array(of_file, type=pyarrow.list_(pyarrow.int32()))
        pyarrow.parquet.write_table(pyarrow.table({"input_ids": column}), directory / f"part-{file}.parquet", row_group_size=17)
    return str(directory)


def read_as_told(data: str, part: dict[str, Any]) -> list[int]:
    """The tokens of a part of a row group, which are the same by its rows as by its tokens."""
    assert set(part) == {"file", "row_group", "rows", "first_token_of_row", "tokens"}
    rows = row_group_of(Path(data) / part["file"], part["row_group"])
    begins = [0, *itertools.accumulate(map(len, rows))]
    (first, end), (start, stop) = part["rows"], part["tokens"]
    # A row's end may be all that there is of it, where an id stands for that: its first token is one more than there are then.
    assert start == begins[first] + part["first_token_of_row"] <= begins[first + 1] > begins[first]
    assert begins[end - 1] < stop <= begins[end]
    return [token for row in rows for token in row][start:stop]


def stored(data: str, sequence: dict[str, Any]) -> list[int]:
    return [token for part in sequence["parts"] for token in read_as_told(data, part)]


def rows_under(data: str, sequence: dict[str, Any]) -> list[list[int]]:
    return [row for part in sequence["parts"] for row in row_group_of(Path(data) / part["file"], part["row_group"])[slice(*part["rows"])]]


def tokens_of(batch: Batch, row: int) -> list[int]:
    """Those of a row of a batch that are in a file."""
    ids: list[int] = batch["input_ids"][row][batch["document_ids"][row] >= 0].tolist()
    return [token for token in ids if token != EOS]


@pytest.mark.parametrize("others", [{}, {"eos_id": EOS}, {"packing": "pad"}, {"tail": "wrap"}], ids=str)
def test_each_sequence_of_both_ranks_is_explained_to_the_token_in_a_later_epoch(gappy: str, others: dict[str, Any]) -> None:
    settings = {"seq_len": 48, "seed": 7, "lanes": 8, "window": 64, **others}
    # One sequence a step: it has the step's number as its position.
    in_order = TokenLoader(gappy, **settings, global_batch=1)
    ranks = [TokenLoader(gappy, **settings, global_batch=5, rank=rank, world_size=2) for rank in range(2)]
    for loader in (in_order, *ranks):
        loader.set_epoch(2)
    order = [tokens_of(batch, 0) for batch in in_order]
    met: Counter[int] = Counter()
    for step, batches in enumerate(zip(*ranks, strict=True)):
        # While they are read: whoever asks disturbs nothing.
        told, same = (rank.explain(step) for rank in ranks)
        assert told == same, "all ranks say the same of all ranks"
        assert set(told) == {"step", "epoch", "sequences"}
        assert (told["step"], told["epoch"]) == (batches[0].step, batches[0].epoch) == (step, 2)
        places = [(sequence["rank"], sequence["row"]) for sequence in told["sequences"]]
        assert places == sorted(set(places)), "rank by rank, and row by row"
        explained = dict(zip(places, told["sequences"], strict=True))
        for rank, batch in enumerate(batches):
            for row in range(len(batch["input_ids"])):
                sequence = explained.pop((rank, row), None)
                if sequence is None:
                    assert bool((batch["document_ids"][row] == -1).all()), "it is padding"
                    continue
                assert set(sequence) == {"rank", "row", "position", "parts"}
                assert stored(gappy, sequence) == tokens_of(batch, row) == order[sequence["position"]] != []
                assert len(list(filter(None, rows_under(gappy, sequence)))) == int(batch["document_ids"][row].max()) + 1
        assert not explained
        positions = sorted(sequence["position"] for sequence in told["sequences"])
        if step < len(ranks[0]) - 1 or others.get("tail") != "wrap":
            assert positions == list(range(5 * step, min(5 * step + 5, len(order))))
        met.update(positions)
    assert set(met) == set(range(len(order))) and len(order) % 5, "there is a tail"


def test_an_explained_step_is_one_of_the_epoch_that_the_stream_is_in(data: str) -> None:
    loader = TokenLoader(data, **SETTINGS)
    told = {}
    for epoch in (0, 3):
        loader.set_epoch(epoch)
        told[epoch] = loader.explain(5)
        assert (told[epoch]["epoch"], told[epoch]["step"]) == (epoch, 5)
        batch = next(batch for batch in loader if batch.step == 5)
        assert [stored(data, sequence) for sequence in told[epoch]["sequences"]] == batch["input_ids"].tolist()
    assert told[0]["sequences"] != told[3]["sequences"]


def test_a_loader_that_has_done_nothing_says_so(data: str) -> None:
    assert TokenLoader(data, **SETTINGS).stats() == {
        "batches": 0,
        "tokens": 0,
        "tokens_per_second": 0,
        "elapsed_s": 0,
        "stalled_s": 0,
        "decoding_s": 0,
        "queue_depth": 0,
        "row_groups_read": 0,
        "bytes_read": 0,
        "fallbacks": 0,
        "pages_read_again": 0,
        "masked_row_groups": 0,
        "masked": [],
        "coordinator_trouble": None,
    }


def test_each_rank_counts_what_it_hands_out_over_all_epochs(data: str, rows: list[list[int]]) -> None:
    ranks = [TokenLoader(data, **SETTINGS, rank=rank, world_size=2) for rank in range(2)]
    for epoch in (1, 2):
        tokens = [sum(batch.tokens for batch in rank) for rank in ranks]
        assert sum(tokens) == sum(map(len, rows))
        for rank in ranks:
            assert rank.stats()["batches"] == epoch * len(rank)
    assert sum(rank.stats()["tokens"] for rank in ranks) == 2 * sum(map(len, rows))
    before, loader = ranks[0].stats()["batches"], ranks[0]
    loader.skip(3, 7)
    # Others may be ready; nobody was given them.
    for batch in loader:
        if batch.step == 8:
            break
    assert loader.stats()["batches"] == before + 5


def test_times_are_those_from_the_first_batch_to_the_last(data: str) -> None:
    loader = TokenLoader(data, **SETTINGS, threads=1)
    began = time.perf_counter()
    for batch in loader:
        if batch.step == 0:
            time.sleep(0.05)
    took, stats = time.perf_counter() - began, loader.stats()
    assert 0.05 <= stats["elapsed_s"] <= took
    # The trainer was busy then, and waited for nobody.
    assert 0 <= stats["stalled_s"] <= stats["elapsed_s"] - 0.05
    assert 0 < stats["decoding_s"] <= took
    assert stats["tokens_per_second"] == pytest.approx(stats["tokens"] / stats["elapsed_s"])
    time.sleep(0.05)
    assert [loader.stats()[name] for name in ("elapsed_s", "stalled_s")] == [stats["elapsed_s"], stats["stalled_s"]], "the epoch is over"


def test_batches_that_are_ready_are_counted(data: str) -> None:
    loader = TokenLoader(data, **SETTINGS)
    iterator = iter(loader)
    next(iterator)
    deadline = time.monotonic() + 60
    while not loader.stats()["queue_depth"] and time.monotonic() < deadline:
        time.sleep(0.01)
    assert 0 < loader.stats()["queue_depth"] < len(loader)
    for _ in iterator:
        pass
    assert loader.stats()["queue_depth"] == 0


def test_what_was_read_of_the_files_is_counted(data: str, rows: list[list[int]]) -> None:
    loader = TokenLoader(data, **AT_ONCE)
    assert next(iter(loader)).tokens == sum(map(len, rows))
    stats, needed = loader.stats(), 0
    for file in Path(data).glob("*.parquet"):
        metadata = pyarrow.parquet.read_metadata(file)
        needed += sum(metadata.row_group(at).column(0).total_compressed_size for at in range(metadata.num_row_groups))
    assert stats["row_groups_read"] == ROW_GROUPS
    # Once, with a little of what lies around pages.
    assert needed <= stats["bytes_read"] < 1.1 * needed
    assert (stats["fallbacks"], stats["pages_read_again"], stats["masked_row_groups"], stats["masked"]) == (0, 0, 0, [])


def test_row_groups_that_only_the_other_decoder_can_read_are_counted(data: str, rows: list[list[int]], tmp_path: Path) -> None:
    for number, file in enumerate(sorted(Path(data).glob("*.parquet"))):
        split = {"use_dictionary": False, "column_encoding": {"input_ids.list.element": "BYTE_STREAM_SPLIT"}} if number == 2 else {}
        pyarrow.parquet.write_table(pyarrow.parquet.read_table(file), tmp_path / file.name, row_group_size=16, **split)
    loader = TokenLoader(tmp_path, **AT_ONCE)
    ids = next(iter(loader))["input_ids"].flatten()
    assert ids[ids != 0].tolist() == [token for row in rows for token in row]
    assert (loader.stats()["row_groups_read"], loader.stats()["fallbacks"]) == (ROW_GROUPS, 4)


def test_pages_that_are_read_again_for_want_of_memory_are_counted(data: str) -> None:
    settings: dict[str, Any] = {**SETTINGS, "lanes": 8, "window": 2, "threads": 1}
    with pytest.raises(ValueError, match="memory budget") as refused:
        TokenLoader(data, **settings, memory_budget=1)
    needed = max(int(number.replace(",", "")) for number in re.findall(r"\d[\d,]*", str(refused.value)))
    loaders = [TokenLoader(data, **settings), TokenLoader(data, **settings, memory_budget=needed)]
    much, little = ([batch["input_ids"].tolist() for batch in loader] for loader in loaders)
    assert much == little
    assert loaders[0].stats()["pages_read_again"] == 0 < loaders[1].stats()["pages_read_again"]
    assert loaders[0].stats()["bytes_read"] < loaders[1].stats()["bytes_read"]


def test_a_row_group_that_is_masked_is_named(tmp_path: Path) -> None:
    rows = write_data(tmp_path)
    damaged = tmp_path / "part-002.parquet"
    # The second of four in the third of five files.
    lost = torch.tensor([token for row in rows[2 * 60 + 16 : 2 * 60 + 32] for token in row])
    before = list(TokenLoader(tmp_path, **SETTINGS, cache="off"))
    column = pyarrow.parquet.read_metadata(damaged).row_group(1).column(0)
    with damaged.open("r+b") as file:
        # The head of its first page.
        file.seek(column.dictionary_page_offset)
        file.write(bytes([0xFF] * 36))
    loader = TokenLoader(tmp_path, **SETTINGS, on_corrupt="mask", cache="off")
    for batch, whole in zip(loader, before, strict=True):
        is_lost = torch.isin(whole["input_ids"], lost)
        assert torch.equal(batch["input_ids"], whole["input_ids"].masked_fill(is_lost, 0))
        assert bool((batch["labels"][is_lost] == -100).all()) and bool((batch["document_ids"][is_lost] == -1).all())
        assert batch.tokens == whole.tokens - int(is_lost.sum())
    stats = loader.stats()
    assert stats["masked_row_groups"] == 1 and stats["tokens"] == sum(map(len, rows)) - len(lost)
    ((number, reason),) = stats["masked"]
    # Its number in the manifest, and where that is.
    assert number == 2 * 4 + 1
    assert reason.startswith(f"{damaged}: row group 1 is damaged: page 0") and f"byte {column.dictionary_page_offset}" in reason


def test_a_coordinator_that_went_away_is_named_and_batches_go_on(data: str, etcd: tuple[int, int]) -> None:  # noqa: F811
    expected = [batch["input_ids"].tolist() for batch in TokenLoader(data, **SETTINGS)]
    port, server = etcd
    loader = reporting(data, port)
    iterator = iter(loader)
    taken = [next(iterator)["input_ids"].tolist() for _ in range(3)]
    assert loader.stats()["coordinator_trouble"] is None
    os.kill(server, 9)
    deadline = time.monotonic() + 60
    while loader.stats()["coordinator_trouble"] is None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert f"127.0.0.1:{port}" in loader.stats()["coordinator_trouble"]
    assert taken + [batch["input_ids"].tolist() for batch in iterator] == expected
