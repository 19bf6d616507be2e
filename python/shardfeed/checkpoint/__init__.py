"""Reads PyTorch's distributed checkpoints in parallel, without the interpreter lock, and without unpickling their metadata.

In a training job, hand a `Reader` to torch; everything else stays as it is:

>>> import torch.distributed.checkpoint as dcp
>>> from shardfeed.checkpoint import Reader
>>> state = {"model": model.state_dict()}
>>> dcp.load(state, storage_reader=Reader("checkpoints/step-1000"))

In a script, without a process group:

>>> import shardfeed.checkpoint
>>> shardfeed.checkpoint.load(state, "checkpoints/step-1000")

To see what a checkpoint holds, torch is not even needed:

>>> shardfeed.checkpoint.inspect("checkpoints/step-1000")["totals"]["tensors"]
2

Tensors become bit for bit what torch's own reader makes of them, whatever their type, their layout and the planner.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardfeed.checkpoint._inspection import Chunk, Inspection, StoredObject, StoredTensor, Totals, inspect
from shardfeed.checkpoint._progress import Progress, TellProgress
from shardfeed.checkpoint._workers import get_memory_aware_workers, get_optimal_workers

if TYPE_CHECKING:
    from shardfeed.checkpoint._installing import install
    from shardfeed.checkpoint._loading import load
    from shardfeed.checkpoint._reader import Reader

__all__ = [
    "Chunk",
    "Inspection",
    "Progress",
    "Reader",
    "StoredObject",
    "StoredTensor",
    "TellProgress",
    "Totals",
    "get_memory_aware_workers",
    "get_optimal_workers",
    "inspect",
    "install",
    "load",
]

# These need torch, which takes seconds to import and may not be there: it is asked for when they are.
_NEED_TORCH = {"Reader": "_reader", "load": "_loading", "install": "_installing"}


def __getattr__(name: str) -> object:
    if name not in _NEED_TORCH:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(f"{__name__}.{_NEED_TORCH[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
