"""What a load plan asks for, beside what the checkpoint says of it."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import MetadataIndex, TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadItemType, ReadItem

from shardfeed._native import CHECKPOINT_DTYPES, checkpoint_object_bytes_max

# Types that native code can write into a tensor of the same type, where this version of torch has them.
NATIVE_DTYPES: dict[torch.dtype, str] = {
    getattr(torch, name): name for name in CHECKPOINT_DTYPES if hasattr(torch, name)
}

NATIVE_TRANSFORMS = frozenset({"stream.zstd/1"})


@dataclass(frozen=True)
class StoredPart:
    """A part of a stored chunk that native code can read: what is stored, and which part of it, counted from its first element."""

    dtype: torch.dtype
    chunk_offsets: tuple[int, ...]
    chunk_sizes: tuple[int, ...]
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    # Its dimensions, first those along which elements lie farthest apart in the file, if that is known to be another order than they have.
    order: tuple[int, ...] | None = None

    @functools.cached_property
    def bytes(self) -> int:
        return self.dtype.itemsize * math.prod(self.sizes)

    def narrowed(self, dim: int, first: int, count: int) -> StoredPart:
        """So many indices of one dimension."""
        offsets = (*self.offsets[:dim], self.offsets[dim] + first, *self.offsets[dim + 1 :])
        sizes = (*self.sizes[:dim], count, *self.sizes[dim + 1 :])
        return StoredPart(self.dtype, self.chunk_offsets, self.chunk_sizes, offsets, sizes, self.order)


@dataclass
class Wanted:
    """One item of a plan: where it is stored and, if native code can read it as a tensor, what of it is wanted."""

    item: ReadItem
    info: Any
    part: StoredPart | None
    # Of a tensor's chunk, as far as the metadata know it.
    chunk_sizes: tuple[int, ...] | None = None

    def of(self, part: StoredPart) -> Wanted:
        """The same with another part."""
        return Wanted(self.item, self.info, part, self.chunk_sizes)

    @property
    def name(self) -> str:
        return self.item.storage_index.fqn

    @property
    def is_object(self) -> bool:
        return self.item.type == LoadItemType.BYTE_IO

    @property
    def transforms(self) -> list[str]:
        # Torch before 2.7 has no such field.
        return list(getattr(self.info, "transform_descriptors", None) or ())

    @property
    def bytes(self) -> int:
        """Bytes of work that it is."""
        return self.part.bytes if self.part is not None else int(self.info.length)

    @property
    def bytes_max(self) -> int:
        """Bytes that it may have once its transforms are undone."""
        if self.is_object or self.chunk_sizes is None:
            return checkpoint_object_bytes_max(self.info.length)
        # No element is larger than sixteen bytes, and what torch adds to them is small.
        return min(16 * math.prod(self.chunk_sizes) + (4 << 20), 2**62)


def wanted_in_order(
    items: Iterable[ReadItem],
    storage_data: Mapping[MetadataIndex, Any],
    state_dict_metadata: Mapping[str, Any],
) -> list[Wanted]:
    """Everything that a plan asks for, in the order in which torch's reader takes it: file after file, as they are needed first, and
    within a file as the plan says. It matters where destinations lie over each other: the last one stays."""
    per_file: dict[str, list[Wanted]] = {}
    for item in items:
        index = item.storage_index
        info = storage_data[index]
        part, sizes = None, None
        if item.type != LoadItemType.BYTE_IO:
            tensor = state_dict_metadata.get(index.fqn)
            if isinstance(tensor, TensorStorageMetadata):
                sizes = _chunk_sizes(tensor, index)
                if sizes is not None:
                    part = _part(item, tensor.properties.dtype, index.offset, sizes)
        per_file.setdefault(info.relative_path, []).append(Wanted(item, info, part, sizes))
    return [wanted for group in per_file.values() for wanted in group]


def _chunk_sizes(tensor: TensorStorageMetadata, index: MetadataIndex) -> tuple[int, ...] | None:
    chunks = tensor.chunks
    if index.index is not None and index.index < len(chunks) and chunks[index.index].offsets == index.offset:
        return tuple(chunks[index.index].sizes)
    return next((tuple(chunk.sizes) for chunk in chunks if chunk.offsets == index.offset), None)


def _part(item: ReadItem, dtype: torch.dtype, chunk_offsets: Any, chunk_sizes: tuple[int, ...]) -> StoredPart | None:
    """What `narrow_tensor_by_index` would leave; `None` where it would fail, or where nothing is left."""
    if dtype not in NATIVE_DTYPES or chunk_offsets is None:
        return None
    if not len(item.storage_offsets) == len(item.lengths) == len(chunk_sizes):
        return None
    offsets, sizes = [], []
    for offset, length, size in zip(item.storage_offsets, item.lengths, chunk_sizes):
        # It narrows only what is longer than what is asked for, and looks at the offset only then.
        if length >= size:
            offset, length = 0, size
        if length < 1 or offset < 0 or offset + length > size:
            return None
        offsets.append(offset)
        sizes.append(length)
    return StoredPart(dtype, tuple(chunk_offsets), chunk_sizes, tuple(offsets), tuple(sizes))
