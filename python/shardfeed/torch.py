"""`TokenDataset`: the token stream behind torch's DataLoader, torchdata's StatefulDataLoader, Lightning, Accelerate and the Trainer."""

import contextlib
import inspect
import multiprocessing
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, Concatenate, ParamSpec

from torch.utils.data import IterableDataset, get_worker_info

from shardfeed.batch import Batch
from shardfeed.loops import Loops, before_acknowledging, number_of, queue_of_workers
from shardfeed.token_loader import TokenLoader

__all__ = ["TokenDataset"]

#: Wrappers that divide a data set among processes, and what becomes of one that is divided.
SECOND_SHARDS = {
    "IterableDatasetShard": "it keeps every n-th batch of what is this rank's already, and loses the others",
    "DataLoaderDispatcher": "it hands rank 0's part out to all ranks, and loses theirs",
}

#: Wrappers of Accelerate whose loops count epochs by themselves, from 0, and fetch a batch before they hand out the one before it.
LOOPS_AHEAD = ("DataLoaderShard", "DataLoaderDispatcher", "DataLoaderAdapter")

#: Callers further up have nothing to do with it.
FRAMES_MAX = 24


_Arguments = ParamSpec("_Arguments")


def _with_arguments_of(
    other: Callable[Concatenate[Any, _Arguments], None],
) -> Callable[[Callable[..., None]], Callable[Concatenate[Any, _Arguments], None]]:
    """Type checkers, editors and `help` see the arguments of another function."""

    def take(function: Callable[..., None]) -> Callable[Concatenate[Any, _Arguments], None]:
        signature = inspect.signature(other)
        own, *rest = signature.parameters.values()
        # As mypy calls a first argument that has no name.
        own = own.replace(name="__arg0", kind=inspect.Parameter.POSITIONAL_ONLY)
        function.__signature__ = signature.replace(parameters=[own, *rest])  # type: ignore[attr-defined]
        return function

    return take


class TokenDataset(IterableDataset[Batch]):
    """`TokenLoader` as a data set of batches; takes the same arguments. Give it to a DataLoader with `batch_size=None`.

    Workers of a DataLoader take turns: the first prepares the first step, the second the next, and so on, so that order and content are
    what they are without workers. It is divided among ranks already, and says so where a wrapper would do it again.

    >>> from torch.utils.data import DataLoader
    >>> loader = DataLoader(TokenDataset(data, seq_len=128, global_batch=8), batch_size=None, num_workers=2)
    >>> [batch.step for batch in loader][:3]
    [0, 1, 2]

    Without workers a loop begins where this data set stands, and `state_dict()` says where that is. With workers batches come from other
    processes. The first loop begins where the data set stands; each one after it is the next epoch, also if the one before was left early
    (nobody tells the workers how far the trainer got), unless `set_epoch` or `load_state_dict` said where it begins, or a loop without
    workers ended there. For the state use torchdata's StatefulDataLoader, or `state_dict(after=batch)` with the last batch that was trained
    on.

    `set_epoch`, `load_state_dict` and `skip` count from the next loop on: call them before `iter(DataLoader)`, not while it is being read.
    A copy, also one that was pickled, is a data set of its own that stands where this one does. With workers, make it in the process that
    trains, not before that was forked or spawned.
    """

    @_with_arguments_of(TokenLoader.__init__)
    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__()
        self.loader = TokenLoader(*arguments, **settings)
        self._loops = Loops()
        self._turn: _Turn | None = None
        # Whether somebody between the loader and the trainer holds a batch back.
        self._is_ahead = False
        # Whether workers have handed out batches: they may persist.
        self._has_had_workers = False

    def __len__(self) -> int:
        """Steps of an epoch, from its start."""
        return len(self.loader)

    def set_epoch(self, epoch: int) -> None:
        """The next loop begins at the start of an epoch; within the current one the position stays.

        What Accelerate's loops say by themselves is not listened to: they count from 0, also after a resume.
        """
        if _is_called_by_a_loop_ahead():
            return
        if get_worker_info() is not None:
            # Of no concern to the other workers.
            self.loader.set_epoch(epoch)
            return
        self._catch_up()
        if epoch != self.loader.epoch:
            self._is_ahead = False
        self.loader.set_epoch(epoch)
        self._tell_workers()

    def skip(self, start: int, stop: int) -> None:
        """Leaves steps `start` to `stop - 1` of the epoch out in which the next loop begins; see `TokenLoader.skip`.

        With workers the next loop begins an epoch, unless `load_state_dict` said otherwise: after a loss spike that is called first, with
        a state from before it.
        """
        if get_worker_info() is not None:
            self.loader.skip(start, stop)
            return
        self._catch_up()
        self.loader.skip(start, stop)
        self._tell_workers()

    def __iter__(self) -> Iterator[Batch]:
        _refuse_second_shard(self.loader.world_size)
        _refuse_second_skip(self.loader)
        _refuse_batches_of_batches()
        # Not a generator: whoever asks for the state before the first batch asks after this.
        worker = get_worker_info()
        if worker is None:
            self._catch_up()
            self._is_ahead = False
            is_wrapped = any(frame.f_code.co_qualname.startswith(LOOPS_AHEAD) for frame in _callers())
            return self._batches(is_wrapped)
        _refuse_another_parent(self._loops)
        turn = self._turn_of(worker.id, worker.num_workers)
        turn.begin()
        return turn.batches()

    def state_dict(self, *, after: Batch | None = None) -> dict[str, Any]:
        """Where the stream stands; with `after`, where it stands once that batch was handed out."""
        if self._turn is not None:
            return self._turn.state_dict()
        if after is None and get_worker_info() is None:
            self._own_loops()
            if self._loops.last_epoch() is not None:
                raise RuntimeError(
                    "workers of a DataLoader hand out the batches, and this process does not know how far they are; use torchdata's "
                    "StatefulDataLoader and its state_dict(), or state_dict(after=batch) with the last batch that was trained on"
                )
            # torchdata is asked by Accelerate, at a time when nothing is held back.
            if self._is_ahead and not any(frame.f_globals.get("__name__", "").startswith("torchdata.") for frame in _callers()):
                raise RuntimeError(
                    "Accelerate fetches a batch before the trainer asks for it, so that the data set is further than the trainer; use "
                    "state_dict(after=batch) with the last batch that was trained on (batches know their step with "
                    "DataLoaderConfiguration(dispatch_batches=False))"
                )
        return self.loader.state_dict(after=after)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues where a state stands: the next loop begins there."""
        worker = get_worker_info()
        if worker is not None:
            self._turn_of(worker.id, worker.num_workers).load_state_dict(state)
            return
        if "turn" in state:
            raise ValueError("this is the state of one worker of a DataLoader; load it into a StatefulDataLoader")
        self._own_loops()
        self.loader.load_state_dict(state)
        self._is_ahead = False
        self._tell_workers()

    def _turn_of(self, worker: int, workers: int) -> "_Turn":
        if self._turn is None:
            self._turn = _Turn(self.loader, self._loops, worker, workers)
        return self._turn

    def _batches(self, is_wrapped: bool) -> Iterator[Batch]:
        """A loop of this process."""
        for batch in self.loader:
            if is_wrapped:
                self._is_ahead = True
            self._tell_workers_that_persist()
            yield batch
        self._tell_workers_that_persist()

    def _tell_workers(self) -> None:
        """Loops of workers begin where the loader stands, from the next one on."""
        self._has_had_workers = self._has_had_workers or self._loops.last_epoch() is not None
        self._loops.begin_at(self.loader.state_dict())

    def _tell_workers_that_persist(self) -> None:
        """They go on where a loop of this process is, also if it is left early, unless they have begun one since. Nobody knows when it is left: who
        is told only then may be told long after workers have been started.
        """
        if self._has_had_workers and self._loops.is_at_home and self._loops.last_epoch() is None:
            self._tell_workers()

    def _own_loops(self) -> None:
        """In a child that was forked or spawned to train by itself: what it does is no business of its parent's workers."""
        if get_worker_info() is None and not self._loops.is_at_home:
            self._loops, self._has_had_workers = Loops(self._loops.last_epoch()), False

    def _catch_up(self) -> None:
        """After loops that workers did, this process's loader goes to the epoch after theirs."""
        self._own_loops()
        last = self._loops.last_epoch()
        if last is not None:
            self.loader.set_epoch(last + 1)
            self._tell_workers()

    def __getstate__(self) -> dict[str, Any]:
        # On its way to a worker that is spawned: what called whom ends there, and what torch.distributed knows.
        self.loader._refuse_ranks_that_came_later()
        _refuse_second_shard(self.loader.world_size)
        _refuse_second_skip(self.loader)
        self._own_loops()
        return self.__dict__.copy()


class _Turn:
    """One worker's part: it hands out one step of every `of`, the first of them `turn` steps after where everybody begins."""

    def __init__(self, loader: TokenLoader, loops: Loops, turn: int, of: int) -> None:
        self.loader, self.loops, self.turn, self.of = loader, loops, turn, of
        loader._take_turns(turn, of)
        # Where the first loop begins, in which epoch, and whether that is this worker's place already.
        self.base, self.epoch, self.is_placed = loader.state_dict(), loader.epoch, False
        # Whether `base` was loaded into this worker alone.
        self.is_resumed = False
        # Loops that this worker has entered, begun, and acknowledged after the first: as many as the others of its DataLoader.
        self.entered, self.begun, self.acknowledged = 0, 0, 0
        self.queue: Any = None

    def begin(self) -> None:
        if self.queue is None:
            self.queue = queue_of_workers()
            before_acknowledging(self.queue, self._acknowledge)
        if self.entered == self.begun:
            self._enter()
        self.begun += 1
        self.loader.load_state_dict(self.base)
        if not self.is_resumed:
            # Where everybody begins, if it is the epoch in which that lies; else the start of another.
            self.loader.set_epoch(self.epoch)
        if not self.is_placed:
            self.loader._native_loader().pass_over(self.turn)
        self.is_placed, self.is_resumed = True, False

    def _acknowledge(self) -> None:
        """Another loop begins: torchdata's workers have begun it when they acknowledge it, torch's have not."""
        self.acknowledged += 1
        if self.entered == self.begun == self.acknowledged:
            # What goes wrong here would end the worker without a word; it goes wrong once more where it can be told.
            with contextlib.suppress(Exception):
                self._enter()

    def _enter(self) -> None:
        """Finds out where the loop begins, on which the workers agree."""
        # The first loop is that for which the worker was made, whatever was told since: other workers may not have heard of it.
        told = None if self.entered == 0 else self.loops.news()
        if told is not None and not self.is_resumed:
            self.base = told
        loop = (number_of(self.queue), self.entered)
        if self.is_resumed:
            self.loops.join(self.turn, loop, self.epoch)
        else:
            self.is_placed = False
            self.epoch = self.loops.join(self.turn, loop, None, first=self.base["epoch"])
        self.entered += 1

    def batches(self) -> Iterator[Batch]:
        yield from self.loader
        # The loader stands at the start of the next epoch, where this worker has no place yet.
        self.is_placed = False

    def state_dict(self) -> dict[str, Any]:
        state = self.loader.state_dict()
        return {"state": state, "epoch": self.epoch, "turn": self.turn, "of": self.of, "is_placed": self.is_placed}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if "turn" not in state:
            # Where a loader without workers stood.
            state = {"state": state, "epoch": state["epoch"], "turn": self.turn, "of": self.of, "is_placed": False}
        if (state["turn"], state["of"]) != (self.turn, self.of):
            raise ValueError(
                f"the state of worker {state['turn']} of {state['of']} for worker {self.turn} of {self.of}; resume with as many workers, "
                "or load the state of a TokenLoader"
            )
        self.base, self.epoch, self.is_placed, self.is_resumed = state["state"], state["epoch"], state["is_placed"], True


def _callers() -> Iterator[FrameType]:
    """Whoever called into this module, from the nearest on."""
    frame: FrameType | None = sys._getframe(1)
    for _ in range(FRAMES_MAX):
        if frame is None:
            return
        if frame.f_globals is not globals():
            yield frame
        frame = frame.f_back


def _is_called_by_a_loop_ahead() -> bool:
    """Whether a `set_epoch` comes from a loop, and not from a user: through methods of the same name at most."""
    caller = next((frame.f_code for frame in _callers() if frame.f_code.co_name != "set_epoch"), None)
    return caller is not None and caller.co_qualname in [f"{name}.__iter__" for name in LOOPS_AHEAD]


def _refuse_second_shard(world_size: int) -> None:
    """Being cut up by a wrapper although every rank has its own part already would lose data without a word."""
    if world_size == 1:
        return
    for frame in _callers():
        name = frame.f_code.co_qualname.split(".")[0]
        if name in SECOND_SHARDS:
            raise RuntimeError(
                f"{name} divides among ranks what is divided already (world size {world_size}): {SECOND_SHARDS[name]}. Leave the data "
                "loader out of accelerator.prepare(); with the Trainer, override get_train_dataloader and return it as it is"
            )


def _refuse_batches_of_batches() -> None:
    """Tensors would have one dimension more, and `step` and `valid_labels` be those of the first batch."""
    # The nearest caller alone: a data set that wraps ours may make samples of our batches.
    caller = next(_callers(), None)
    if caller is not None and caller.f_code.co_qualname == "_IterableDatasetFetcher.__init__" and caller.f_locals.get("auto_collation"):
        raise ValueError("the DataLoader would make batches of batches; give it batch_size=None, and the number of sequences as global_batch")


def _refuse_second_skip(loader: TokenLoader) -> None:
    """A loader that stands where training goes on, and a wrapper that leaves out what was trained on once more."""
    skips, is_trainer = 0, False
    for frame in _callers():
        if frame.f_code.co_qualname.split(".")[0] in ("SkipDataLoader", *LOOPS_AHEAD):
            skips = max(skips, getattr(frame.f_locals.get("self"), "skip_batches", 0))
        is_trainer = is_trainer or frame.f_globals.get("__name__") == "transformers.trainer"
    # The Trainer skips within an epoch only, and counts on others for the epoch.
    if skips and (is_trainer or loader.state_dict()["position"]):
        raise RuntimeError(
            f"the first {skips} batches would be left out once more, or those of another epoch: call load_state_dict with the state that was "
            "saved with the model, which goes to where training goes on, and let nobody skip; the Trainer is told so with ignore_data_skip=True"
        )


def _refuse_another_parent(loops: Loops) -> None:
    """Workers of several trainers that share one data set would take each other's loops for their own."""
    parent = multiprocessing.parent_process()
    if parent is not None and parent.pid != loops.owner:
        raise RuntimeError(
            f"the data set was made in process {loops.owner}, and process {parent.pid} trains with it; make the TokenDataset in the "
            "process that trains, or call its load_state_dict or set_epoch there before a DataLoader starts workers"
        )
