"""What a checkpoint holds, as plain values."""

from __future__ import annotations

import os
from typing import TypedDict

from shardfeed import _native


class Chunk(TypedDict):
    """A part of a tensor, and where it is stored."""

    offsets: list[int]
    sizes: list[int]
    file: str
    offset: int
    length: int
    transforms: list[str]


class StoredTensor(TypedDict):
    """A tensor: what it is made of, how large it is, and its parts."""

    dtype: str
    shape: list[int]
    bytes: int
    chunks: list[Chunk]


class StoredObject(TypedDict):
    """Something that is not a tensor, and where it is stored."""

    file: str
    offset: int
    length: int
    transforms: list[str]


class Totals(TypedDict):
    """How much there is of everything."""

    tensors: int
    objects: int
    files: int
    tensor_bytes: int
    file_bytes: int


class Inspection(TypedDict):
    """What `inspect` returns: dictionaries by name, in the order in which things were saved."""

    path: str
    version: str | None
    tensors: dict[str, StoredTensor]
    objects: dict[str, StoredObject]
    files: dict[str, int]
    totals: Totals


def inspect(path: str | os.PathLike[str], *, follow_links: bool = False) -> Inspection:
    """What a checkpoint holds: tensors with their types and shapes, other objects, files. Only metadata are read, and nothing in them runs.

    `path` is a directory with `.metadata` and `*.distcp`, or with safetensors files. Torch is not needed.

    >>> found = inspect("checkpoints/step-1000")
    >>> for name, tensor in found["tensors"].items():
    ...     print(name, tensor["dtype"], tensor["shape"])
    model.weight float32 [3, 2]
    model.bias float32 [3]

    A file that is missing or too short for what it should hold is an error that names it, and so is a link to somewhere else unless
    `follow_links` allows it.
    """
    described = _native.describe_checkpoint(os.fspath(path), follow_links=follow_links)
    tensors: dict[str, StoredTensor] = {tensor.pop("name"): tensor for tensor in described["tensors"]}
    objects: dict[str, StoredObject] = {stored.pop("name"): stored for stored in described["objects"]}
    files: dict[str, int] = dict(described["files"])
    return {
        "path": os.fspath(path),
        "version": described["version"],
        "tensors": tensors,
        "objects": objects,
        "files": files,
        "totals": {
            "tensors": len(tensors),
            "objects": len(objects),
            "files": len(files),
            "tensor_bytes": sum(tensor["bytes"] for tensor in tensors.values()),
            "file_bytes": sum(files.values()),
        },
    }
