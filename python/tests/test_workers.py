"""Workers of a DataLoader, and what wraps one: the same steps, in the same order, whoever asks for them."""

import copy
import functools
import multiprocessing
import os
import pickle
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from shardfeed import TokenLoader
from shardfeed.torch import TokenDataset
from torch.utils.data import DataLoader

from process_support import SECONDS_MAX, SETTINGS, steps


@pytest.mark.parametrize(
    ("way", "workers", "others"),
    [
        *((way, workers, {}) for way in ("fork", "spawn", "forkserver") for workers in (1, 2, 4)),
        *(("fork", 2, others) for others in ({"tail": "drop"}, {"tail": "wrap"}, {"packing": "pad"})),
    ],
)
def test_workers_take_turns_and_nothing_changes(data: str, way: str, workers: int, others: dict[str, Any]) -> None:
    settings = {**SETTINGS, **others}
    whole = steps(TokenLoader(data, **settings))
    dataset = TokenDataset(data, **settings, threads=2)
    # The parent's threads are at work when its children are made.
    next(iter(dataset.loader))
    dataset.set_epoch(1)
    dataset.set_epoch(0)
    loader = DataLoader(dataset, batch_size=None, num_workers=workers, multiprocessing_context=way, timeout=SECONDS_MAX)
    batches = list(loader)
    assert steps(batches) == whole
    assert [batch.step for batch in batches] == list(range(len(whole)))
    if workers == 2:
        second = steps(loader)
        one = TokenLoader(data, **settings)
        one.set_epoch(1)
        assert second == steps(one), "the next loop is the next epoch"


def test_without_workers_too(data: str) -> None:
    dataset = TokenDataset(data, **SETTINGS)
    assert steps(DataLoader(dataset, batch_size=None)) == steps(TokenLoader(data, **SETTINGS))
    assert len(DataLoader(dataset, batch_size=None)) == len(dataset) == len(dataset.loader)


def test_a_default_device_changes_nothing(data: str) -> None:
    expected = steps(TokenLoader(data, **SETTINGS))
    with torch.device("meta"):
        dataset = TokenDataset(data, **SETTINGS)
        assert steps(dataset) == expected
        dataset.set_epoch(0)
    # Torch's DataLoader itself cannot start workers there.
    assert steps(DataLoader(dataset, batch_size=None, num_workers=2, timeout=SECONDS_MAX)) == expected


@pytest.mark.parametrize("persist", [False, True])
def test_a_loop_that_was_left_early_is_followed_by_the_next_epoch_or_by_what_was_asked_for(data: str, persist: bool) -> None:
    one = TokenLoader(data, **SETTINGS)
    epochs = [steps(one) for _ in range(4)]
    dataset = TokenDataset(data, **SETTINGS)
    loader = DataLoader(dataset, batch_size=None, num_workers=2, persistent_workers=persist, timeout=SECONDS_MAX)

    def leave_after(count: int) -> tuple[list[list[list[int]]], dict[str, object]]:
        batches = [batch for batch, _ in zip(loader, range(count), strict=False)]
        return steps(batches), dataset.state_dict(after=batches[-1])

    assert steps(loader) == epochs[0]
    assert leave_after(3)[0] == epochs[1][:3]
    taken, state = leave_after(5)
    assert taken == epochs[2][:5], "nobody told the workers how far the trainer got"
    dataset.load_state_dict(state)
    assert steps(loader) == epochs[2][5:]
    assert leave_after(1)[0] == epochs[3][:1]
    dataset.set_epoch(1)
    assert steps(loader) == epochs[1]
    assert steps(loader) == epochs[2]


@pytest.mark.parametrize("way", ["fork", "spawn"])
def test_workers_of_a_loop_agree_whatever_workers_there_were_before_under_the_same_seed(data: str, way: str) -> None:
    dataset = TokenDataset(data, **SETTINGS)
    numbers_of_workers = [(4, 2), (2, 2), (4, 2), (1, 2), (4, 6), (3, 6), (4, 6)] if way == "fork" else [(1, 1), (2, 4), (3, 4)]
    for epoch, (workers, count) in enumerate(numbers_of_workers):
        torch.manual_seed(0)
        loader = DataLoader(dataset, batch_size=None, num_workers=workers, multiprocessing_context=way, timeout=SECONDS_MAX)
        taken = [(batch.epoch, batch.step) for batch, _ in zip(loader, range(count), strict=False)]
        assert taken == [(epoch, step) for step in range(count)], (epoch, workers)


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_of_batches_are_refused(data: str, workers: int) -> None:
    for size in ({"batch_size": 4}, {}):
        loader = DataLoader(TokenDataset(data, **SETTINGS), num_workers=workers, timeout=SECONDS_MAX if workers else 0, **size)
        with pytest.raises(ValueError, match="batches of batches; give it batch_size=None"):
            next(iter(loader))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_in_the_place_of_a_data_set_is_told_what_to_use(data: str, workers: int) -> None:
    loader = DataLoader(TokenLoader(data, **SETTINGS), batch_size=None, num_workers=workers, timeout=SECONDS_MAX if workers else 0)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="use shardfeed.torch.TokenDataset.*batch_size=None"):
        next(iter(loader))


class ReadInThread(torch.utils.data.IterableDataset[Any]):
    """A data set that wraps another, and reads it in a thread of its own."""

    def __init__(self, dataset: TokenDataset) -> None:
        self.dataset = dataset

    def __iter__(self) -> Any:
        taken: list[Any] = []
        thread = threading.Thread(target=lambda: taken.extend(self.dataset))
        thread.start()
        thread.join()
        return iter(taken)


def test_a_wrapper_may_read_in_a_thread(data: str) -> None:
    loader = DataLoader(ReadInThread(TokenDataset(data, **SETTINGS)), batch_size=None, num_workers=2, timeout=SECONDS_MAX)
    assert steps(loader) == steps(TokenLoader(data, **SETTINGS))


def wait_in_worker_one(event: Any, worker: int) -> None:
    assert worker != 1 or event.wait(SECONDS_MAX)


@pytest.mark.parametrize("way", ["fork", "spawn"])
def test_what_is_told_while_workers_start_counts_from_the_next_loop_on(data: str, way: str) -> None:
    one = TokenLoader(data, **SETTINGS)
    epochs = [steps(one) for _ in range(4)]
    resumed = TokenLoader(data, **SETTINGS)
    resumed.set_epoch(3)
    next(iter(resumed))
    context = multiprocessing.get_context(way)
    event = context.Event()
    dataset = TokenDataset(data, **SETTINGS)
    loader = DataLoader(
        dataset, batch_size=None, num_workers=2, persistent_workers=True, multiprocessing_context=context, timeout=SECONDS_MAX,
        worker_init_fn=functools.partial(wait_in_worker_one, event),
    )  # fmt: skip
    iterator = iter(loader)
    taken = [next(iterator)]
    # One worker has begun, the other has not.
    dataset.load_state_dict(resumed.state_dict())
    event.set()
    assert steps([*taken, *iterator]) == epochs[0]
    assert steps(loader) == epochs[3][1:]


def test_a_later_loop_is_not_torn_by_what_is_told_while_its_workers_start(data: str) -> None:
    one = TokenLoader(data, **SETTINGS)
    epochs = [steps(one) for _ in range(2)]
    event = multiprocessing.get_context("fork").Event()
    event.set()
    dataset = TokenDataset(data, **SETTINGS)
    loader = DataLoader(
        dataset, batch_size=None, num_workers=2, multiprocessing_context="fork", timeout=SECONDS_MAX,
        worker_init_fn=functools.partial(wait_in_worker_one, event),
    )  # fmt: skip
    assert steps(loader) == epochs[0]
    event.clear()
    iterator = iter(loader)
    taken = [next(iterator)]
    dataset.set_epoch(0)
    event.set()
    assert steps([*taken, *iterator]) == epochs[1]
    assert steps(loader) == epochs[0]


class BeginsLate(torch.utils.data.IterableDataset[Any]):
    """A data set that wraps another; in one worker it waits before it begins a loop after the first."""

    def __init__(self, dataset: TokenDataset, worker: int, event: Any) -> None:
        self.dataset, self.worker, self.event, self.loops = dataset, worker, event, 0

    def __iter__(self) -> Any:
        self.loops += 1
        worker = torch.utils.data.get_worker_info()
        assert worker is not None
        if self.loops > 1 and self.worker in (worker.id, ALL):
            assert self.event.wait(SECONDS_MAX)
        return iter(self.dataset)


#: All workers.
ALL = -1


@pytest.mark.parametrize(
    ("way", "late", "tell"),
    [("spawn", 1, "set_epoch"), *(("fork", late, tell) for late in (0, 1, ALL) for tell in ("set_epoch", "load_state_dict", "skip", "often"))],
)
def test_a_later_loop_of_workers_that_persist_stays_what_it_is_whatever_is_told(data: str, way: str, late: int, tell: str) -> None:
    """Torch's workers say that they have heard of a loop before they begin it: `iter(DataLoader)` has returned by then."""
    one = TokenLoader(data, **SETTINGS)
    epochs = [steps(one) for _ in range(4)]
    resumed = TokenLoader(data, **SETTINGS)
    resumed.set_epoch(3)
    next(iter(resumed))
    context = multiprocessing.get_context(way)
    event, dataset = context.Event(), TokenDataset(data, **SETTINGS)
    loader = DataLoader(
        BeginsLate(dataset, late, event), batch_size=None, num_workers=2, persistent_workers=True, multiprocessing_context=context,
        timeout=SECONDS_MAX,
    )  # fmt: skip
    assert steps(loader) == epochs[0]
    iterator = iter(loader)
    if tell == "set_epoch":
        dataset.set_epoch(0)
        expected = epochs[0]
    elif tell == "load_state_dict":
        dataset.load_state_dict(resumed.state_dict())
        expected = epochs[3][1:]
    elif tell == "skip":
        dataset.skip(3, 6)
        expected = epochs[2][:3] + epochs[2][6:]
    else:
        for epoch in range(20):
            dataset.load_state_dict(resumed.state_dict())
            dataset.set_epoch(epoch % 3)
        expected = epochs[1]
    event.set()
    assert steps(iterator) == epochs[1]
    assert steps(loader) == expected


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_steps_that_are_skipped_are_skipped_by_workers(data: str, workers: int) -> None:
    one = TokenLoader(data, **SETTINGS)
    epochs = [steps(one) for _ in range(3)]
    for skip in (TokenDataset.skip, lambda dataset, start, stop: dataset.loader.skip(start, stop)):
        dataset = TokenDataset(data, **SETTINGS)
        dataset.set_epoch(1)
        skip(dataset, 2, 5)
        timeout = SECONDS_MAX if workers else 0
        loader = DataLoader(dataset, batch_size=None, num_workers=workers, persistent_workers=workers > 0, timeout=timeout)
        assert steps(loader) == epochs[1][:2] + epochs[1][5:]
        assert steps(loader) == epochs[2]
    # Workers that persist hear of it before their next loop.
    dataset.set_epoch(1)
    dataset.skip(0, 7)
    assert steps(loader) == epochs[1][7:]
    batch = next(iter(loader))
    assert (batch.epoch, batch.step) == (2, 0)
    dataset.load_state_dict(dataset.state_dict(after=batch))
    dataset.skip(4, 6)
    assert steps(loader) == epochs[2][1:4] + epochs[2][6:]


@pytest.mark.parametrize("how", [copy.deepcopy, lambda dataset: pickle.loads(pickle.dumps(dataset))], ids=["deepcopy", "pickle"])
def test_a_copy_of_a_data_set_goes_on_by_itself(data: str, how: Callable[[TokenDataset], TokenDataset]) -> None:
    one = TokenLoader(data, **SETTINGS)
    epochs = [steps(one) for _ in range(3)]
    dataset = TokenDataset(data, **SETTINGS)
    loader = DataLoader(dataset, batch_size=None, num_workers=2, timeout=SECONDS_MAX)
    assert steps(loader) == epochs[0]
    of_copy = DataLoader(how(dataset), batch_size=None, num_workers=2, timeout=SECONDS_MAX)
    assert steps(of_copy) == epochs[1] and steps(of_copy) == epochs[2]
    assert steps(loader) == epochs[1]


def train_in_child(dataset: TokenDataset, way: str, state: dict[str, Any] | None, told: Any) -> None:
    try:
        if state is not None:
            dataset.load_state_dict(state)
        loader = DataLoader(dataset, batch_size=None, num_workers=2, multiprocessing_context=way, timeout=SECONDS_MAX)
        told.put([(batch.epoch, batch.step) for _ in range(2) for batch in loader])
    except Exception as error:
        # Nobody waits for an answer that does not come.
        told.put(f"{type(error).__name__}: {error}")


def in_trainers(way: str, *arguments: Any) -> list[Any]:
    """Two processes that are children of this one train at the same time."""
    context = multiprocessing.get_context(way)
    told = context.Queue()
    trainers = [context.Process(target=train_in_child, args=(*arguments, told)) for _ in range(2)]
    for trainer in trainers:
        trainer.start()
    try:
        answers = [told.get(timeout=SECONDS_MAX) for _ in trainers]
    finally:
        for trainer in trainers:
            trainer.join(SECONDS_MAX)
            trainer.kill()
    return answers


@pytest.mark.parametrize(("way", "way_of_workers"), [("spawn", "spawn"), ("spawn", "forkserver"), ("fork", "spawn")])
def test_trainers_that_were_given_one_data_set_do_not_disturb_each_other(data: str, way: str, way_of_workers: str) -> None:
    dataset = TokenDataset(data, **SETTINGS)
    expected = [(epoch, step) for epoch in range(2) for step in range(len(dataset))]
    assert in_trainers(way, dataset, way_of_workers, None) == [expected] * 2
    assert [batch.epoch for batch in dataset] == [0] * len(dataset), "nor this process"


@pytest.mark.parametrize("way", ["spawn", "fork"])
def test_a_trainer_that_loads_a_state_takes_the_data_set_over(data: str, way: str) -> None:
    dataset = TokenDataset(data, **SETTINGS)
    batch = next(iter(TokenLoader(data, **SETTINGS)))
    state = dataset.state_dict(after=batch)
    expected = [(epoch, step) for epoch in range(2) for step in range(len(dataset))][1:]
    assert in_trainers(way, dataset, "fork", state) == [expected] * 2
    assert [batch.epoch for batch in dataset] == [0] * len(dataset)


def test_workers_of_a_trainer_that_did_not_make_the_data_set_say_so(data: str) -> None:
    dataset = TokenDataset(data, **SETTINGS)
    for answer in in_trainers("fork", dataset, "fork", None):
        assert f"the data set was made in process {os.getpid()}" in answer and "in the process that trains" in answer


def test_without_workers_a_loop_goes_on_after_those_of_workers(data: str) -> None:
    one = TokenLoader(data, **SETTINGS)
    epochs = [steps(one) for _ in range(3)]
    dataset = TokenDataset(data, **SETTINGS)
    assert steps(DataLoader(dataset, batch_size=None, num_workers=2, timeout=SECONDS_MAX)) == epochs[0]
    assert steps(dataset) == epochs[1]
    assert steps(dataset) == epochs[2]


@pytest.mark.parametrize("persist", [False, True])
def test_workers_go_on_where_a_loop_without_them_ended(data: str, persist: bool) -> None:
    one = TokenLoader(data, **SETTINGS)
    epochs = [steps(one) for _ in range(7)]
    dataset = TokenDataset(data, **SETTINGS)
    loader = DataLoader(dataset, batch_size=None, num_workers=2, persistent_workers=persist, timeout=SECONDS_MAX)
    assert steps(loader) == epochs[0]
    assert steps(dataset) == epochs[1]
    assert steps(loader) == epochs[2]
    assert [steps(dataset) for _ in range(2)] == epochs[3:5]
    assert steps(loader) == epochs[5]
    left_early = [batch for _, batch in zip(range(4), dataset, strict=False)]
    assert steps(left_early) == epochs[6][:4]
    assert steps(loader) == epochs[6][4:]


def test_a_loop_without_workers_that_ends_after_one_of_workers_tells_them_nothing(data: str) -> None:
    dataset = TokenDataset(data, **SETTINGS)
    loader = DataLoader(dataset, batch_size=None, num_workers=2, persistent_workers=True, timeout=SECONDS_MAX)
    assert [batch.epoch for batch in loader] == [0] * len(dataset)
    suspended = iter(dataset)
    assert next(suspended).epoch == 1
    assert [batch.epoch for batch in loader] == [1] * (len(dataset) - 1)
    del suspended
    assert [batch.epoch for batch in loader] == [2] * len(dataset)


@pytest.mark.parametrize("start", ["fork", "spawn"])
@pytest.mark.parametrize("after_workers", [False, True])
def test_a_loop_that_is_let_go_of_while_workers_start_tells_them_nothing(data: str, start: str, after_workers: bool) -> None:
    dataset = TokenDataset(data, **SETTINGS)
    if after_workers:
        next(iter(DataLoader(dataset, batch_size=None, num_workers=2, timeout=SECONDS_MAX)))
    one = TokenLoader(data, **SETTINGS)
    whole, after = steps(one), steps(one)
    started = TokenLoader(data, **SETTINGS)
    next(iter(started))
    dataset.load_state_dict(started.state_dict())
    iterator = iter(dataset)
    assert steps([next(iterator)]) == whole[1:2]
    loader = DataLoader(
        dataset, batch_size=None, num_workers=2, multiprocessing_context=start, persistent_workers=True, timeout=SECONDS_MAX
    )
    # Whoever looked at a batch lets go of that loop when the workers are there already.
    iterator = iter(loader)
    assert steps(iterator) == whole[2:]
    assert steps(loader) == after


def test_with_workers_the_state_is_asked_for_by_batch(data: str) -> None:
    whole = steps(TokenLoader(data, **SETTINGS))
    dataset = TokenDataset(data, **SETTINGS)
    iterator = iter(DataLoader(dataset, batch_size=None, num_workers=2, timeout=SECONDS_MAX))
    batch = [next(iterator) for _ in range(5)][-1]
    with pytest.raises(RuntimeError, match="after=batch"):
        dataset.state_dict()
    resumed = TokenDataset(data, **SETTINGS)
    resumed.load_state_dict(dataset.state_dict(after=batch))
    assert steps(DataLoader(resumed, batch_size=None, num_workers=3, timeout=SECONDS_MAX)) == whole[5:]


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_a_stateful_data_loader_continues(data: str, workers: int) -> None:
    stateful = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader
    one = TokenLoader(data, **SETTINGS)
    whole, after = steps(one), steps(one)

    def make() -> object:
        timeout = SECONDS_MAX if workers else 0
        return stateful(TokenDataset(data, **SETTINGS), batch_size=None, num_workers=workers, timeout=timeout)

    for stop in (0, 1, 4, 5):
        loader = make()
        iterator = iter(loader)  # type: ignore[call-overload]
        for _ in range(stop):
            next(iterator)
        state = pickle.loads(pickle.dumps(loader.state_dict()))  # type: ignore[attr-defined]
        again = make()
        again.load_state_dict(state)  # type: ignore[attr-defined]
        assert steps(again) == whole[stop:], f"after {stop} steps"
        assert steps(again) == after, f"the epoch after, after {stop} steps"


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("dispatch", [None, False])
def test_a_data_set_that_accelerate_prepared_resumes_and_counts_epochs_by_itself(data: str, workers: int, dispatch: bool | None) -> None:
    accelerate = pytest.importorskip("accelerate")
    one = TokenLoader(data, **SETTINGS)
    epochs = [steps(one) for _ in range(4)]
    stood = TokenLoader(data, **SETTINGS)
    stood.set_epoch(1)
    batch = [batch for batch, _ in zip(stood, range(5), strict=False)][-1]
    settings = accelerate.utils.DataLoaderConfiguration(dispatch_batches=dispatch)
    accelerator = accelerate.Accelerator(cpu=True, dataloader_config=settings)
    dataset = TokenDataset(data, **SETTINGS)
    dataset.load_state_dict(stood.state_dict(after=batch))
    prepared = accelerator.prepare(DataLoader(dataset, batch_size=None, num_workers=workers, timeout=SECONDS_MAX if workers else 0))
    assert steps(prepared) == epochs[1][5:]
    assert steps(prepared) == epochs[2]
    prepared.set_epoch(1)
    assert steps(prepared) == epochs[1], "a user is listened to"
    assert steps(prepared) == epochs[2]


@pytest.mark.parametrize("workers", [0, 2])
def test_under_accelerate_the_state_is_asked_for_by_batch(data: str, workers: int) -> None:
    accelerate = pytest.importorskip("accelerate")
    whole = steps(TokenLoader(data, **SETTINGS))
    settings = accelerate.utils.DataLoaderConfiguration(dispatch_batches=False)
    accelerator = accelerate.Accelerator(cpu=True, dataloader_config=settings)
    dataset = TokenDataset(data, **SETTINGS)
    loader = DataLoader(dataset, batch_size=None, num_workers=workers, timeout=SECONDS_MAX if workers else 0)
    for batch in accelerator.prepare(loader):
        if batch.step == 3:
            break
    with pytest.raises(RuntimeError, match="after=batch"):
        dataset.state_dict()
    dataset.load_state_dict(dataset.state_dict(after=batch))
    assert dataset.state_dict() == dataset.state_dict(after=batch)
    assert steps(loader) == whole[4:]


@pytest.mark.parametrize("workers", [0, 2])
def test_under_accelerate_the_state_after_an_epochs_last_batch_is_the_next_epoch_or_its_end(data: str, workers: int) -> None:
    accelerate = pytest.importorskip("accelerate")
    one = TokenLoader(data, **SETTINGS)
    epochs = [steps(one) for _ in range(2)]
    settings = accelerate.utils.DataLoaderConfiguration(dispatch_batches=False)
    accelerator = accelerate.Accelerator(cpu=True, dataloader_config=settings)
    dataset = TokenDataset(data, **SETTINGS)
    loader = DataLoader(dataset, batch_size=None, num_workers=workers, timeout=SECONDS_MAX if workers else 0)
    # Accelerate has found the end when it hands out the last.
    states = [dataset.state_dict(after=batch) for batch in accelerator.prepare(loader)]
    for state, rest in ((states[-2], epochs[0][-1:]), (states[-1], [] if workers else epochs[1])):
        resumed = TokenLoader(data, **SETTINGS)
        resumed.load_state_dict(state)
        assert steps(resumed) == rest
    dataset.load_state_dict(states[-1])
    assert (dataset.loader.steps_left == 0) == (workers > 0)


@pytest.mark.parametrize("workers", [0, 2])
def test_accelerate_with_a_stateful_data_loader_keeps_the_state(data: str, workers: int) -> None:
    accelerate = pytest.importorskip("accelerate")
    pytest.importorskip("torchdata.stateful_dataloader")
    whole = steps(TokenLoader(data, **SETTINGS))
    settings = accelerate.utils.DataLoaderConfiguration(dispatch_batches=False, use_stateful_dataloader=True)
    accelerator = accelerate.Accelerator(cpu=True, dataloader_config=settings)
    timeout = SECONDS_MAX if workers else 0
    first, second = (
        accelerator.prepare(DataLoader(TokenDataset(data, **SETTINGS), batch_size=None, num_workers=workers, timeout=timeout))
        for _ in range(2)
    )
    for batch in first:
        if batch.step == 3:
            state = first.state_dict()
            break
    second.load_state_dict(state)
    assert steps(second) == whole[4:]


def test_batches_that_accelerate_dispatched_say_how_to_keep_what_they_know(data: str) -> None:
    accelerate = pytest.importorskip("accelerate")
    prepared = accelerate.Accelerator(cpu=True).prepare(DataLoader(TokenDataset(data, **SETTINGS), batch_size=None))
    with pytest.raises(AttributeError, match=r"DataLoaderConfiguration\(dispatch_batches=False\)"):
        next(iter(prepared)).step  # noqa: B018


def test_a_wrapper_that_divides_again_is_refused(data: str) -> None:
    shard = pytest.importorskip("accelerate.data_loader").IterableDatasetShard
    dataset = TokenDataset(data, **SETTINGS, rank=0, world_size=2)
    with pytest.raises(RuntimeError, match="IterableDatasetShard.*divided already"):
        next(iter(shard(dataset, num_processes=2)))
    assert steps(dataset), "by itself it is read"
    alone = TokenDataset(data, **SETTINGS)
    assert next(iter(shard(alone, num_processes=1))) is not None
