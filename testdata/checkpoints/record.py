"""What torch's own reader gives for a checkpoint, as hashes."""

import hashlib
import math
import warnings
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import DefaultLoadPlanner, FileSystemReader
from torch.distributed.checkpoint.metadata import BytesStorageMetadata

from values import made, poisoned


@dataclass
class Case:
    """One entry of cases.json; README.md says what its fields mean."""

    name: str
    path: str
    tensors: dict = field(default_factory=dict)
    objects: dict = field(default_factory=dict)
    slices: list = field(default_factory=list)
    unsupported: dict = field(default_factory=dict)
    rank: int | None = None

    def as_json(self):
        entry = {k: v for k, v in vars(self).items() if v is not None}
        entry["slices"] = sorted(self.slices, key=lambda s: (s["tensor"], s["start"], s["size"]))
        return entry

    def summary(self):
        counts = (f"{k} {len(getattr(self, k)):4}" for k in ("tensors", "objects", "slices"))
        return f"{self.name:28} {'  '.join(counts)}  unsupported {len(self.unsupported)}"


def quiet():
    """Leave out what torch says about things that are done here on purpose."""
    for start in (
        "torch.distributed is disabled, unavailable or uninitialized",
        "Detected an existing checkpoint",
        "Please use DTensor instead and we are deprecating ShardedTensor",
        "torch.quantize_per_tensor, torch.quantize_per_channel",
        "BComplex32 support is experimental",
        "ComplexHalf support is experimental",
    ):
        warnings.filterwarnings("ignore", start)


# ---------------------------------------------------------------- bytes


def elements(tensor):
    """The tensor as a numpy array of opaque elements: numpy has no bfloat16
    or float8, and torch cannot copy parts of a tensor in every dtype."""
    raw = tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)
    return raw.numpy().view(f"V{tensor.dtype.itemsize}").reshape(tensor.shape)


def sha256(array):
    return hashlib.sha256(np.ascontiguousarray(array).reshape(-1).view(np.uint8)).hexdigest()


def part(array, start, size):
    return array[tuple(slice(s, s + n) for s, n in zip(start, size, strict=True))]


def slice_entry(name, array, start, size):
    start, size = list(start), list(size)
    return {
        "tensor": name,
        "start": start,
        "size": size,
        "sha256": sha256(part(array, start, size)),
    }


# ---------------------------------------------------------------- reading


class FlatPlanner(DefaultLoadPlanner):
    """Loads keys by their flat names, and keeps of each object the bytes that
    the reader hands over instead of unpickling them."""

    def __init__(self):
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)
        self.objects = {}

    def load_bytes(self, read_item, value):
        self.objects[read_item.dest_index.fqn] = value.getvalue()


class RankReader(FileSystemReader):
    """Reads by one rank's own metadata, whichever rank this process is."""

    def __init__(self, path, rank):
        super().__init__(path)
        self.metadata_rank = rank

    def read_metadata(self, *args, **kwargs):
        return super().read_metadata(rank=self.metadata_rank)


def is_whole(metadata):
    """Whether the chunks make up the tensor; those of one rank may not."""
    return sum(math.prod(c.sizes) for c in metadata.chunks) == math.prod(metadata.size)


def contents(reader, prefix):
    """What the tensors of a checkpoint were filled with: names say it."""
    saved = reader.read_metadata().state_dict_metadata
    return {
        name: made(f"{prefix}.{name}", tuple(entry.size), entry.properties.dtype)
        for name, entry in saved.items()
        if not isinstance(entry, BytesStorageMetadata)
    }


def read(reader, leave_out=()):
    """All tensors that are there as a whole, and the bytes of all objects."""
    targets, planner = {}, FlatPlanner()
    for name, saved in reader.read_metadata().state_dict_metadata.items():
        if isinstance(saved, BytesStorageMetadata):
            targets[name] = None
        elif name not in leave_out and is_whole(saved):
            targets[name] = poisoned(saved.size, saved.properties.dtype)
    # dcp.load replaces the objects in the dict it is given, so it gets its own.
    dcp.load(dict(targets), storage_reader=reader, planner=planner, no_dist=True)
    return {k: v for k, v in targets.items() if v is not None}, planner.objects


def check_loaded(name, loaded, saved):
    """That torch gives back what was saved: else the case is not what its
    name says, whatever the reader under test does with it."""
    for key, tensor in loaded.items():
        if tensor.shape != saved[key].shape or tensor.dtype != saved[key].dtype:
            raise AssertionError(f"{name}: {key} came back as {tensor.dtype} {tuple(tensor.shape)}")
        if sha256(elements(tensor)) != sha256(elements(saved[key])):
            raise AssertionError(f"{name}: {key} came back with other bytes than were saved")


def check_given(name, given, saved):
    for s in given:
        if s["sha256"] != sha256(part(elements(saved[s["tensor"]]), s["start"], s["size"])):
            raise AssertionError(f"{name}: a rank got other bytes than were saved: {s}")


def tensor_entries(tensors):
    return {
        name: {"dtype": str(t.dtype), "shape": list(t.shape), "sha256": sha256(elements(t))}
        for name, t in tensors.items()
    }


def recorded(name, reader, saved, slices=(), given=(), unsupported=None, path=None, rank=None):
    """Read a checkpoint and make its case.

    `saved` has all tensors by their flat names, and must come back.  `slices`
    are (tensor, start, size) to cut from what was read; `given` are entries
    that loading processes have made already.
    """
    unsupported = unsupported or {}
    tensors, objects = read(reader, leave_out=unsupported)
    check_loaded(name, tensors, saved)
    check_given(name, given, saved)
    return Case(
        name,
        path or name,
        tensors=tensor_entries(tensors),
        objects={k: {"sha256": hashlib.sha256(v).hexdigest()} for k, v in objects.items()},
        slices=[slice_entry(t, elements(tensors[t]), start, size) for t, start, size in slices]
        + list(given),
        unsupported=unsupported,
        rank=rank,
    )


def recorded_as_saved(name, reader, saved, slices):
    """The case of a checkpoint whose tensors torch can write but not read:
    only the objects are read, and the tensors are what was saved."""
    tensors, objects = read(reader, leave_out=saved)
    if tensors:
        raise AssertionError(f"{name}: {sorted(tensors)} are not known to have been saved")
    return Case(
        name,
        name,
        tensors=tensor_entries(saved),
        objects={k: {"sha256": hashlib.sha256(v).hexdigest()} for k, v in objects.items()},
        slices=[slice_entry(t, elements(saved[t]), start, size) for t, start, size in slices],
    )


# ---------------------------------------------------------------- slices


def boxes(shape):
    """Parts of a tensor that a reader could get wrong: whole; along each
    dimension thin and thick, at both ends and inside; blocks in the corners
    and inside; single elements."""
    if 0 in shape:
        return [([0] * len(shape), list(shape))]
    whole = [(0, n) for n in shape]
    found = [whole]
    for dim, n in enumerate(shape):
        for first, length in ((0, 1), (n - 1, 1), (0, n - 1), (1, n - 1), (n // 3, max(1, n // 3))):
            found.append(whole[:dim] + [(first, length)] + whole[dim + 1 :])
    half = [max(1, n // 2) for n in shape]
    found.append([(0, h) for h in half])
    found.append([(n - h, h) for n, h in zip(shape, half, strict=True)])
    found.append([(i % 2 * (n - h), h) for i, (n, h) in enumerate(zip(shape, half, strict=True))])
    found.append([(n // 4, max(1, n // 2)) for n in shape])
    found += [[(0, 1) for _ in shape], [(n - 1, 1) for n in shape], [(n // 2, 1) for n in shape]]
    unique = dict.fromkeys(tuple(box) for box in found if all(length > 0 for _, length in box))
    return [([s for s, _ in box], [n for _, n in box]) for box in unique]


def all_boxes(tensors):
    return [(name, *box) for name, t in tensors.items() for box in boxes(t.shape)]
