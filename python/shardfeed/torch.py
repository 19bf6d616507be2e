"""`TokenDataset`: the token stream behind torch's DataLoader, torchdata's StatefulDataLoader, Lightning, Accelerate and the Trainer."""

import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import IterableDataset, get_worker_info

from shardfeed.batch import Batch
from shardfeed.token_loader import TokenLoader

__all__ = ["TokenDataset"]

#: More workers of one DataLoader are a mistake.
WORKERS_MAX = 1024

#: Wrappers that divide a data set among processes, and what becomes of one that is divided.
SECOND_SHARDS = {
    "IterableDatasetShard": "it keeps every n-th batch of what is this rank's already, and loses the others",
    "DataLoaderDispatcher": "it hands rank 0's part out to all ranks, and loses theirs",
}


class TokenDataset(IterableDataset[Batch]):
    """`TokenLoader` as a data set of batches; takes the same arguments. Give it to a DataLoader with `batch_size=None`.

    Workers of a DataLoader take turns: the first prepares the first step, the second the next, and so on, so that order and content are
    what they are without workers. It is divided among ranks already, and says so where a wrapper would do it again.

    >>> loader = torch.utils.data.DataLoader(TokenDataset(data, seq_len=128, global_batch=8), batch_size=None, num_workers=2)
    >>> [batch.step for batch in loader][:3]
    [0, 1, 2]

    Each loop over a DataLoader is an epoch from where this data set stands. Without workers, `state_dict()` says where that is. With them
    batches come from elsewhere: use torchdata's StatefulDataLoader, or `state_dict(after=batch)` with the last batch that was trained on.
    """

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__()
        self.loader = TokenLoader(*arguments, **settings)
        # One past the last epoch that each worker has finished; and whether there were any. Shared by all of them.
        self._finished = torch.zeros(WORKERS_MAX + 1, dtype=torch.int64).share_memory_()  # type: ignore[no-untyped-call]
        self._turn: _Turn | None = None

    def __len__(self) -> int:
        """Steps of an epoch, from its start."""
        return len(self.loader)

    def set_epoch(self, epoch: int) -> None:
        """Goes to the start of an epoch; within the current one the position stays."""
        self._finished[:WORKERS_MAX] = 0
        self.loader.set_epoch(epoch)

    def __iter__(self) -> Iterator[Batch]:
        _refuse_second_shard(self.loader.world_size)
        # Not a generator: whoever asks for the state before the first batch asks after this.
        worker = get_worker_info()
        if worker is None:
            return iter(self.loader)
        if self._turn is None:
            self._turn = _Turn(self.loader, worker.id, worker.num_workers)
        self._finished[WORKERS_MAX] = 1
        self._turn.begin(int(self._finished[: worker.num_workers].min()))
        return self._take_turns(self._turn)

    def _take_turns(self, turn: "_Turn") -> Iterator[Batch]:
        epoch = self.loader.epoch
        yield from self.loader
        turn.end()
        self._finished[turn.turn] = epoch + 1

    def state_dict(self, *, after: Batch | None = None) -> dict[str, Any]:
        """Where the stream stands; with `after`, where it stands once that batch was handed out."""
        if self._turn is not None:
            return self._turn.state_dict()
        if after is None and get_worker_info() is None and self._finished[WORKERS_MAX]:
            raise RuntimeError(
                "workers of a DataLoader hand out the batches, and this process does not know how far they are; use torchdata's "
                "StatefulDataLoader and its state_dict(), or state_dict(after=batch) with the last batch that was trained on"
            )
        return self.loader.state_dict(after=after)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues where a state stands."""
        worker = get_worker_info()
        if worker is None:
            if "turn" in state:
                raise ValueError("this is the state of one worker of a DataLoader; load it into a StatefulDataLoader")
            self._finished.zero_()
            self.loader.load_state_dict(state)
            return
        if self._turn is None:
            self._turn = _Turn(self.loader, worker.id, worker.num_workers)
        self._turn.load_state_dict(state)


class _Turn:
    """One worker's part: it hands out one step of every `of`, the first of them `turn` steps after where everybody begins."""

    def __init__(self, loader: TokenLoader, turn: int, of: int) -> None:
        self.loader, self.turn, self.of = loader, turn, of
        loader._take_turns(of)
        # Where a loop begins: one that was left early is begun again. And whether that is this worker's place already.
        self.base, self.is_base_placed = loader.state_dict(), False
        self.is_placed = False

    def begin(self, epoch: int) -> None:
        self.loader.load_state_dict(self.base)
        if epoch > self.base["epoch"]:
            self.loader.set_epoch(epoch)
            self.base, self.is_base_placed = self.loader.state_dict(), False
        if not self.is_base_placed:
            self.loader._native_loader().pass_over(self.turn)
        self.is_placed = True

    def end(self) -> None:
        """The epoch is over: the loader stands at the beginning of the next."""
        self.base, self.is_base_placed = self.loader.state_dict(), False
        self.is_placed = False

    def state_dict(self) -> dict[str, Any]:
        return {"state": self.loader.state_dict(), "turn": self.turn, "of": self.of, "is_placed": self.is_placed}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if "turn" not in state:
            # Where a loader without workers stood.
            self.base, self.is_base_placed = state, False
            return
        if (state["turn"], state["of"]) != (self.turn, self.of):
            raise ValueError(
                f"the state of worker {state['turn']} of {state['of']} for worker {self.turn} of {self.of}; resume with as many workers, "
                "or load the state of a TokenLoader"
            )
        self.base, self.is_base_placed = state["state"], state["is_placed"]


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
