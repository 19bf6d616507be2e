"""A small data set for all tests."""

import faulthandler
import os
import random
from collections.abc import Iterator
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest


#: No test takes half of it.
SECONDS_MAX = 900

#: Where errors go, also while pytest takes what tests write.
errors = 2


def pytest_configure() -> None:
    global errors
    errors = os.dup(2)


def write_data(directory: Path, *, files: int = 5, rows: int = 60, row_group: int = 16) -> list[list[int]]:
    """Rows of 1 to 300 ids, each with ids of its own, so that a token says where it is from."""
    directory.mkdir(parents=True, exist_ok=True)
    dice, next_id, written = random.Random(7), 3, []
    for file in range(files):
        of_file = []
        for _ in range(rows):
            length = dice.randint(1, 300)
            of_file.append(list(range(next_id, next_id + length)))
            next_id += length
        column = pyarrow.array(of_file, type=pyarrow.list_(pyarrow.int32()))
        pyarrow.parquet.write_table(
            pyarrow.table({"input_ids": column}), directory / f"part-{file:03}.parquet", row_group_size=row_group
        )
        written += of_file
    return written


@pytest.fixture(scope="session")
def rows_and_data(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[list[int]], Path]:
    directory = tmp_path_factory.mktemp("data")
    return write_data(directory), directory


@pytest.fixture(scope="session")
def data(rows_and_data: tuple[list[list[int]], Path]) -> str:
    return str(rows_and_data[1])


@pytest.fixture(scope="session")
def rows(rows_and_data: tuple[list[list[int]], Path]) -> list[list[int]]:
    return rows_and_data[0]


@pytest.fixture(autouse=True)
def not_for_ever() -> Iterator[None]:
    """A test that waits for ever says where, and ends the run: some wait for what they call, or for processes, and know no limit."""
    faulthandler.dump_traceback_later(SECONDS_MAX, exit=True, file=errors)
    yield
    faulthandler.cancel_dump_traceback_later()


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever started the tests is no job of ranks."""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
