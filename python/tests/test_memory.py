"""Memory and open files stay what they are, however many epochs and loaders there were."""

import gc
import os
from collections.abc import Callable
from typing import Any

import pytest
from shardfeed import TokenLoader
from shardfeed.torch import TokenDataset
from torch.utils.data import DataLoader

from process_support import SETTINGS


def rss() -> int:
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


#: Batches of a quarter of a MiB: what is kept of them shows.
LARGE = {**SETTINGS, "global_batch": 256}
#: Of 40 MiB and more that are handed out, what may stay.
GROWTH_MAX = 10 << 20
#: After a thousand loaders, what another thousand may add: 2 KiB each.
LOADERS_GROWTH_MAX = 2 << 20


def growth_over_epochs(data: str, kept: list[Any]) -> int:
    loader = TokenLoader(data, **LARGE)

    def epochs(count: int) -> None:
        for _ in range(count):
            for batch in loader:
                kept.append(batch)

    epochs(5)
    before = rss()
    epochs(40)
    return rss() - before


def growth_over_loaders(data: str, kept: list[Any]) -> int:
    def loaders(count: int, kept: list[Any]) -> None:
        for _ in range(count):
            kept.append(next(iter(TokenLoader(data, **LARGE))))

    # What grows over the first ones alone does not grow with their number.
    loaders(1000, Forgets())
    before, files = rss(), open_files()
    loaders(1000, kept)
    assert open_files() == files
    return rss() - before


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


class Forgets(list[Any]):
    """Keeps nothing."""

    def append(self, _: Any) -> None:
        pass


@pytest.mark.parametrize(("growth", "growth_max"), [(growth_over_epochs, GROWTH_MAX), (growth_over_loaders, LOADERS_GROWTH_MAX)])
def test_memory_stays_over_epochs_and_loaders(data: str, growth: Callable[[str, list[Any]], int], growth_max: int) -> None:
    assert growth(data, Forgets()) < growth_max
    assert growth(data, []) > 3 * GROWTH_MAX, "batches that are kept are noticed"


def test_data_sets_leave_no_file_open(data: str) -> None:
    def datasets(count: int) -> None:
        for _ in range(count):
            dataset = TokenDataset(data, **SETTINGS)
            dataset.set_epoch(1)
            next(iter(DataLoader(dataset, batch_size=None)))

    datasets(2)
    gc.collect()
    before = open_files()
    datasets(100)
    gc.collect()
    assert open_files() == before
