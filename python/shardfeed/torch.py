"""`TokenDataset`: the token stream behind torch's DataLoader, torchdata's StatefulDataLoader, Lightning, Accelerate and the Trainer."""

import sys
from collections.abc import Iterator
from typing import Any

from torch.utils.data import IterableDataset, get_worker_info

from shardfeed.batch import Batch
from shardfeed.loops import Loops
from shardfeed.token_loader import TokenLoader

__all__ = ["TokenDataset"]

#: Wrappers that divide a data set among processes, and what becomes of one that is divided.
SECOND_SHARDS = {
    "IterableDatasetShard": "it keeps every n-th batch of what is this rank's already, and loses the others",
    "DataLoaderDispatcher": "it hands rank 0's part out to all ranks, and loses theirs",
}


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
    (nobody tells the workers how far the trainer got), unless `set_epoch` or `load_state_dict` said where it begins. For the state use
    torchdata's StatefulDataLoader, or `state_dict(after=batch)` with the last batch that was trained on.
    """

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__()
        self.loader = TokenLoader(*arguments, **settings)
        self._loops = Loops()
        self._turn: _Turn | None = None

    def __len__(self) -> int:
        """Steps of an epoch, from its start."""
        return len(self.loader)

    def set_epoch(self, epoch: int) -> None:
        """The next loop begins at the start of an epoch; within the current one the position stays."""
        self._catch_up()
        self.loader.set_epoch(epoch)
        self._loops.begin_at(self.loader.state_dict())

    def __iter__(self) -> Iterator[Batch]:
        _refuse_second_shard(self.loader.world_size)
        # Not a generator: whoever asks for the state before the first batch asks after this.
        worker = get_worker_info()
        if worker is None:
            self._catch_up()
            return iter(self.loader)
        turn = self._turn_of(worker.id, worker.num_workers)
        turn.begin(self._loops, worker.id, worker.seed - worker.id)
        return turn.batches()

    def state_dict(self, *, after: Batch | None = None) -> dict[str, Any]:
        """Where the stream stands; with `after`, where it stands once that batch was handed out."""
        if self._turn is not None:
            return self._turn.state_dict()
        if after is None and get_worker_info() is None and self._loops.last_epoch() is not None:
            raise RuntimeError(
                "workers of a DataLoader hand out the batches, and this process does not know how far they are; use torchdata's "
                "StatefulDataLoader and its state_dict(), or state_dict(after=batch) with the last batch that was trained on"
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
        self.loader.load_state_dict(state)
        self._loops.begin_at(self.loader.state_dict())

    def _turn_of(self, worker: int, workers: int) -> "_Turn":
        if self._turn is None:
            self._turn = _Turn(self.loader, worker, workers)
        return self._turn

    def _catch_up(self) -> None:
        """After loops that workers did, this process's loader goes to the epoch after theirs."""
        last = self._loops.last_epoch()
        if last is not None:
            self.loader.set_epoch(last + 1)
            self._loops.begin_at(None)

    def __getstate__(self) -> dict[str, Any]:
        # On its way to a worker that is spawned: what called whom ends there.
        _refuse_second_shard(self.loader.world_size)
        return self.__dict__


class _Turn:
    """One worker's part: it hands out one step of every `of`, the first of them `turn` steps after where everybody begins."""

    def __init__(self, loader: TokenLoader, turn: int, of: int) -> None:
        self.loader, self.turn, self.of = loader, turn, of
        loader._take_turns(turn, of)
        # Where the first loop begins, in which epoch, and whether that is this worker's place already.
        self.base, self.epoch, self.is_placed = loader.state_dict(), loader.epoch, False
        # Whether `base` was loaded into this worker alone.
        self.is_resumed = False

    def begin(self, loops: Loops, worker: int, seed: int) -> None:
        told = loops.base()
        if self.is_resumed:
            loops.join(worker, seed, self.epoch)
        else:
            self.base, self.is_placed = told or self.base, False
            self.epoch = loops.join(worker, seed, None, first=self.base["epoch"])
        self.loader.load_state_dict(self.base)
        if not self.is_resumed:
            # Where everybody begins, if it is the epoch in which that lies; else the start of another.
            self.loader.set_epoch(self.epoch)
        if not self.is_placed:
            self.loader._native_loader().pass_over(self.turn)
        self.is_placed, self.is_resumed = True, False

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


def _refuse_second_shard(world_size: int) -> None:
    """Being cut up by a wrapper although every rank has its own part already would lose data without a word."""
    if world_size == 1:
        return
    frame = sys._getframe(2)
    for _ in range(24):
        name = frame.f_code.co_qualname.split(".")[0]
        if name in SECOND_SHARDS:
            raise RuntimeError(
                f"{name} divides among ranks what is divided already (world size {world_size}): {SECOND_SHARDS[name]}. Leave the data "
                "loader out of accelerator.prepare(); with the Trainer, override get_train_dataloader and return it as it is"
            )
        if frame.f_back is None:
            return
        frame = frame.f_back
