"""Buffers of the native code as tensors, or as NumPy arrays where there is no torch."""

import importlib.util
import sys
from collections.abc import Callable
from typing import Any

#: Makes an array of a buffer, of a type ("int64"), of a shape, without copying.
MakeArray = Callable[[Any, str, tuple[int, ...]], Any]


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

    def array(buffer: Any, dtype: str, shape: tuple[int, ...]) -> Any:
        return numpy.frombuffer(buffer, dtype=dtype).reshape(shape)

    return array


def _tensors() -> MakeArray:
    import torch

    dtypes = {"int64": torch.int64, "int32": torch.int32}

    def tensor(buffer: Any, dtype: str, shape: tuple[int, ...]) -> Any:
        return torch.frombuffer(buffer, dtype=dtypes[dtype]).view(shape)

    return tensor


def _pinned_tensors() -> MakeArray:
    """Copies into memory of torch's own pinned allocator: it alone knows when a copy to a device that is under way is done, so that no
    batch is written over before.
    """
    import torch

    tensor = _tensors()

    def pinned(buffer: Any, dtype: str, shape: tuple[int, ...]) -> Any:
        return tensor(buffer, dtype, shape).pin_memory()

    del torch
    return pinned
