"""Loading a checkpoint without a process group."""

from __future__ import annotations

import os
from typing import Any

import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import LoadPlanner
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict
from torch.distributed.checkpoint.stateful import Stateful

from shardfeed.checkpoint._progress import TellProgress
from shardfeed.checkpoint._reader import Reader


def load(
    state_dict: dict[str, Any],
    path: str | os.PathLike[str],
    *,
    planner: LoadPlanner | None = None,
    use_parallel: bool = True,
    num_workers: int | None = None,
    verify: bool = False,
    memory_budget: int | None = None,
    progress: TellProgress | bool | None = None,
    follow_links: bool = False,
    fs: Any = None,
) -> None:
    """Fills a state dict from a checkpoint, in place, as `torch.distributed.checkpoint.load` does in a process of its own.

    No process group is needed, and none is used: where there is one, every rank loads what it holds by itself, with no rank waiting
    for another. What the keywords mean is told at `Reader`.

    >>> state = {"model": model.state_dict(), "step": 0}
    >>> load(state, "checkpoints/step-1000", progress=True)
    >>> state["step"]
    1000

    Objects that are no tensors are unpickled by torch, as with its own reader: load checkpoints of people you trust.
    """
    reader = _RankReader(
        path,
        use_parallel=use_parallel,
        num_workers=num_workers,
        verify=verify,
        memory_budget=memory_budget,
        progress=progress,
        follow_links=follow_links,
        fs=fs,
    )
    # As torch has it: sorted, and with the state of what has one in its place.
    keys = sorted(state_dict)
    loaded = {key: value.state_dict() if isinstance(value := state_dict[key], Stateful) else value for key in keys}
    try:
        _load_state_dict(loaded, reader, no_dist=True, planner=planner)
    except CheckpointException as failed:
        # There is one rank, and what happened to it is what happened.
        raise reader._refused or _cause(failed) from None
    for key in keys:
        value = state_dict[key]
        if isinstance(value, Stateful):
            value.load_state_dict(loaded[key])
        else:
            state_dict[key] = loaded[key]


class _RankReader(Reader):
    """Torch, which was told that there is no process group, takes every rank for the first one."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        return super().read_metadata(*args, **_with_rank(kwargs))

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        super().set_up_storage_reader(metadata, is_coordinator, *args, **_with_rank(kwargs))


def _with_rank(asked: dict[str, Any]) -> dict[str, Any]:
    if asked.get("rank") is not None and dist.is_available() and dist.is_initialized():
        return {**asked, "rank": dist.get_rank()}
    return asked


def _cause(failed: CheckpointException) -> BaseException:
    for error, _ in failed.failures.values():
        return error
    return failed
