"""Buffers of the native code as tensors, or as NumPy arrays where there is no torch."""

import importlib.util
import math
import sys
from collections.abc import Callable
from typing import Any

#: Makes the array at an index of a buffer in which arrays of one type ("int64") and shape lie one after another, without copying.
MakeArray = Callable[[Any, str, tuple[int, ...], int], Any]


def array_maker(kind: str | None, *, pin_memory: bool = False) -> MakeArray:
    """For `kind` "torch" or "numpy"; by itself torch where it is installed."""
    if kind is None:
        kind = "torch" if "torch" in sys.modules or importlib.util.find_spec("torch") else "numpy"
    if kind == "torch":
        return _pinned_tensors() if pin_memory else _tensors()
    if kind != "numpy":
        raise ValueError(f'unknown kind of arrays {kind!r}; it is "torch" or "numpy"')
    if pin_memory:
        raise ValueError("pin_memory needs torch")
    import numpy

    def array(buffer: Any, dtype: str, shape: tuple[int, ...], index: int) -> Any:
        return numpy.ndarray(shape, dtype, buffer, index * math.prod(shape) * numpy.dtype(dtype).itemsize)

    return array


def _tensors() -> MakeArray:
    import torch

    dtypes = {"int64": torch.int64, "int32": torch.int32}

    def tensor(buffer: Any, dtype: str, shape: tuple[int, ...], index: int) -> Any:
        # Not views of one tensor: whoever writes to `labels` must not have changed `input_ids` in autograd's eyes, and what is sent to
        # another process or saved is one array, not all of them.
        kind, count = dtypes[dtype], math.prod(shape)
        return torch.frombuffer(buffer, dtype=kind, count=count, offset=index * count * kind.itemsize).view(shape)

    return tensor


def _pinned_tensors() -> MakeArray:
    """Copies into memory of torch's own pinned allocator: it alone knows when a copy to a device that is under way is done, so that no
    batch is written over before.
    """
    import torch

    tensor = _tensors()
    # Fails here where there is nothing to pin memory for, before a batch is taken.
    torch.empty(1, device="cpu").pin_memory()

    def pinned(buffer: Any, dtype: str, shape: tuple[int, ...], index: int) -> Any:
        return tensor(buffer, dtype, shape, index).pin_memory()

    return pinned
