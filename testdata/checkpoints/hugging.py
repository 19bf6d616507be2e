"""Safetensors: directories as Hugging Face lays them out, written by torch and
by the safetensors package, and torch's own use of the format inside a
distributed checkpoint.  What ranks save is in ranks.py."""

import json

import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file, save_file
from torch.distributed.checkpoint import (
    FileSystemReader,
    HuggingFaceStorageReader,
    HuggingFaceStorageWriter,
)
from torch.distributed.checkpoint.filesystem import SerializationFormat

from record import (
    Case,
    all_boxes,
    check_loaded,
    elements,
    recorded,
    recorded_as_saved,
    slice_entry,
    tensor_entries,
)
from single import save
from values import made

DTYPES = (
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
    torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64,
    torch.uint16, torch.uint32, torch.uint64,
    torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz,
)  # fmt: skip

# The safetensors package reads and writes these, torch's HuggingFaceStorageReader
# fails on a file that has them.  A float4 element is a pair of numbers, which
# safetensors counts as two: the header's last dimension is twice torch's.
ONLY_BY_PACKAGE = (torch.float8_e8m0fnu, torch.float4_e2m1fn_x2)


def state(prefix, dtypes):
    found = {str(d).removeprefix("torch."): made(f"{prefix}.{d}", (5, 7), d) for d in dtypes}
    shapes = {"vector": (31,), "cube": (3, 4, 5), "one": (1,), "none": (0, 3), "scalar": ()}
    return found | {k: made(f"{prefix}.{k}", s) for k, s in shapes.items()}


def written_by_torch(out):
    tensors = state("hf", DTYPES)
    indices = {name: 1 + i % 3 for i, name in enumerate(tensors)}
    for name, index in (("hf_one_file", None), ("hf_three_files", indices)):
        writer = HuggingFaceStorageWriter(str(out / name), index)
        dcp.save(tensors, storage_writer=writer, no_dist=True)
        yield recorded(name, HuggingFaceStorageReader(str(out / name)), tensors, all_boxes(tensors))


def by_package(directory, name, saved):
    """The case of a directory as the safetensors package reads it."""
    loaded = {}
    for file in sorted(directory.glob("*.safetensors")):
        loaded |= load_file(file)
    check_loaded(name, loaded, saved)
    slices = [
        slice_entry(t, elements(loaded[t]), start, size) for t, start, size in all_boxes(loaded)
    ]
    return Case(name, name, tensor_entries(loaded), slices=slices)


def written_by_package(out):
    tensors = state("package", DTYPES + ONLY_BY_PACKAGE)
    (out / "st_one_file").mkdir()
    save_file(tensors, out / "st_one_file/model.safetensors", metadata={"format": "pt"})
    yield by_package(out / "st_one_file", "st_one_file", tensors)

    directory, names = out / "st_index", sorted(tensors)
    directory.mkdir()
    halves = {
        "model-00001-of-00002.safetensors": names[::2],
        "model-00002-of-00002.safetensors": names[1::2],
    }
    for file, part in halves.items():
        save_file({n: tensors[n] for n in part}, directory / file)
    index = {
        "metadata": {"total_size": sum(t.nbytes for t in tensors.values())},
        "weight_map": {n: file for file, part in halves.items() for n in part},
    }
    (directory / "model.safetensors.index.json").write_text(json.dumps(index, indent=2))
    yield by_package(directory, "st_index", tensors)


def inside_checkpoint(out):
    """Objects first, as torch.save wrote them, then one safetensors file for
    all tensors: at no aligned place, and each tensor is said to begin there.
    A file without tensors ends with a safetensors file without tensors."""
    tensors = state("inside", DTYPES + ONLY_BY_PACKAGE)
    objects = {
        "step": 5,
        "config": {"name": "x", "sizes": [1, 2]},
        "text": "objects come before tensors",
    }
    options = {
        "safetensors": {},
        "safetensors_threads": {"thread_count": 3},
        "safetensors_per_item": {"single_file_per_rank": False},
    }
    for name, how in options.items():
        save(
            out / name,
            tensors | objects,
            serialization_format=SerializationFormat.SAFETENSORS,
            **how,
        )
        yield recorded_as_saved(name, FileSystemReader(out / name), tensors, all_boxes(tensors))


def make(out):
    yield from written_by_torch(out)
    yield from written_by_package(out)
    yield from inside_checkpoint(out)
