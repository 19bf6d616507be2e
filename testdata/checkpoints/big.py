"""Checkpoints of more than 4 GiB in a few KiB of disk: what is zero is left
out of the file (a sparse file).  Torch reads them whole, which takes a minute
and 13 GiB of memory."""

import contextlib
import os
import pickle

import numpy as np
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.filesystem import FileSystem

from record import all_boxes, recorded
from single import copied, flat, save
from values import cut, made, sample

MIB, GIB = 1 << 20, 1 << 30


class SparseFile:
    """A file in which long zeros are holes."""

    def __init__(self, file):
        self.file = file

    def write(self, data):
        data = np.frombuffer(data, np.uint8)
        for at in range(0, data.size, MIB):
            piece = data[at : at + MIB]
            # Only whole pieces: a file must not end in a hole.
            if piece.size < MIB or piece.any():
                self.file.write(piece)
            else:
                self.file.seek(MIB, os.SEEK_CUR)
        return data.size

    def __getattr__(self, name):
        return getattr(self.file, name)


class SparseFileSystem(FileSystem):
    @contextlib.contextmanager
    def create_stream(self, path, mode):
        with super().create_stream(path, mode) as stream:
            yield SparseFile(stream) if mode == "wb" else stream


def zip64(out):
    """An item whose data record is larger than 4 GiB, so that its zip needs
    64-bit sizes and offsets; and one after it."""
    whole = torch.zeros(32_771, 32_771)
    if whole.nbytes <= 4 * GIB:
        raise AssertionError("too small for zip64")
    marks = {(0, 0): (3, 5), (16_000, 100): (2, 40), (32_765, 32_760): (6, 11), (32_767, 0): (2, 9)}
    for start, size in marks.items():
        cut(whole, start, size).copy_(made(f"zip64.{start}", size))
    state = {"huge": whole, "later": made("zip64.later", (5, 3))}
    writer = FileSystemWriter(out / "big_zip64", sync_files=False)
    writer.fs = SparseFileSystem()
    dcp.save(state, storage_writer=writer, no_dist=True)
    slices = [("huge", start, size) for start, size in marks.items()]
    slices += [
        ("huge", (32_766, 32_700), (4, 71)),
        ("huge", (0, 0), (1, 32_771)),
        ("huge", (0, 5), (32_771, 1)),
    ]
    slices += all_boxes({"later": state["later"]})
    return recorded("big_zip64", FileSystemReader(out / "big_zip64"), state, slices)


def offsets(out):
    """Items across and beyond 2 GiB and 4 GiB of their file, where pickle
    writes offsets with other opcodes."""
    save(out / "big_offsets_from", sample())
    directory = copied(out, "big_offsets_from", "big_offsets")
    metadata = pickle.loads((directory / ".metadata").read_bytes())
    path = directory / "__0_0.distcp"
    data = path.read_bytes()
    # Some bytes before a border, so that an item lies across it.
    starts = iter([0, 2 * GIB - 100, 4 * GIB - 100, 5 * GIB])
    with path.open("wb") as file:
        for i, place in enumerate(metadata.storage_data.values()):
            if i % 3 == 0:
                file.seek(next(starts))
            item = data[place.offset : place.offset + place.length]
            place.offset = file.tell()
            file.write(item)
    (directory / ".metadata").write_bytes(pickle.dumps(metadata, 4))
    yield recorded("big_offsets_from", FileSystemReader(out / "big_offsets_from"), flat(sample()))
    yield recorded("big_offsets", FileSystemReader(directory), flat(sample()))


def make(out):
    yield from offsets(out)
    yield zip64(out)
