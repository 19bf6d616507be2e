"""Tensors whose bytes follow from a name, so that every process can make them.

No value is ever sent between processes or kept in a file beside the
checkpoint: whoever knows the name, shape and dtype has the tensor.
"""

import math
import zlib
from itertools import pairwise, product

import numpy as np
import torch


def made(name, shape, dtype=torch.float32):
    """Random bytes as a tensor.  Floats get every kind of NaN this way, and
    the reader has to keep each as it is."""
    random = np.random.default_rng(zlib.crc32(name.encode()))
    raw = np.zeros(math.prod(shape) * dtype.itemsize, np.uint8)
    if raw.size == 0:
        return torch.empty(shape, dtype=dtype)
    raw[:] = np.frombuffer(random.bytes(raw.size), np.uint8)
    if dtype is torch.bool:
        raw &= 1
    return torch.from_numpy(raw).view(dtype).reshape(shape)


def finite(name, shape, dtype=torch.float32):
    """Numbers without NaN, for views that compute on the way: torch may turn
    one NaN into another there, and differently on another processor."""
    if dtype.is_complex:
        parts = {2: torch.float16, 4: torch.float32, 8: torch.float64}[dtype.itemsize // 2]
        return torch.view_as_complex(finite(name, (*shape, 2), parts))
    # Whole numbers are exact in each of the types, zero and negative included.
    return (made(name, shape, torch.int8) // 2).to(dtype)


def checkpointable(local, global_shape, global_offsets, local_offsets, sizes):
    """Make `local` stand for shards of a larger tensor, as torch 2.14 allows:
    a plain tensor with four attributes."""
    local.global_shape = tuple(global_shape)
    local.global_offsets = tuple(map(tuple, global_offsets))
    local.local_offsets = tuple(map(tuple, local_offsets))
    local.local_sizes = tuple(map(tuple, sizes))
    return local


def grid(shape, borders):
    """(start, size) of all pieces when a tensor is cut, in each dimension, at
    that dimension's `borders`."""
    spans = [list(pairwise([*dim, n])) for dim, n in zip(borders, shape, strict=True)]
    return [
        ([first for first, _ in piece], [end - first for first, end in piece])
        for piece in product(*spans)
    ]


def cut(whole, start, size):
    """The box of `whole` that begins at `start`."""
    for dim, (first, length) in enumerate(zip(start, size, strict=True)):
        whole = whole.narrow(dim, first, length)
    return whole


def sample():
    """A small state dict with a bit of everything, for cases that are about
    something else than what is in it."""
    return {
        "weight": made("sample.weight", (17, 23)),
        "turned": made("sample.turned", (11, 6), torch.bfloat16).t(),
        "ids": made("sample.ids", (301,), torch.int64),
        "mask": made("sample.mask", (5, 3, 2), torch.bool),
        "phases": made("sample.phases", (4, 3), torch.complex64),
        "small": made("sample.small", (33,), torch.float8_e4m3fn),
        "scalar": made("sample.scalar", (), torch.float64),
        "none": made("sample.none", (0, 3)),
        "step": 1234,
        "config": {"name": "sample", "sizes": [1, 2, 3], "nothing": None},
    }


def poisoned(shape, dtype):
    """A tensor to load into: filled with what no case has saved there, so
    that a place the reader leaves out is seen."""
    tensor = torch.empty(shape, dtype=dtype)
    tensor.untyped_storage().fill_(0xA5)
    return tensor
