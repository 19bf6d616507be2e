"""Writes a small checkpoint by the torch that is installed, whichever that is: `python of_version.py fixtures`.

Two ranks save it together: tensors in parts and whole ones, of every dtype that this version can save, and objects. It lies in
`fixtures/torch_VERSION`, and what that torch reads in it is noted in `fixtures/expected.json`. Any torch from 2.1 on does.
"""

import hashlib
import io
import json
import logging
import os
import socket
import sys
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp

try:
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor
except ImportError:
    from torch.distributed._tensor import Replicate, Shard, distribute_tensor
try:
    from torch.distributed.device_mesh import init_device_mesh
except ImportError:
    from torch.distributed._tensor import DeviceMesh

    def init_device_mesh(device, shape):
        return DeviceMesh(device, torch.arange(shape[0]))


WORLD = 2

DTYPES = """float64 float16 bfloat16 int64 int32 int16 int8 uint8 uint16 uint32 uint64 complex32 complex64 complex128
float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz float8_e8m0fnu""".split()


def of_every_dtype(numbers):
    """What this version can make and save, by the name of its dtype."""
    found = {}
    for name in DTYPES:
        try:
            converted = numbers.to(getattr(torch, name))
            torch.save(converted, io.BytesIO())
        except (AttributeError, KeyError, NotImplementedError, RuntimeError):
            continue
        found[name] = converted
    return found


def state():
    """What is saved, but for how it is divided."""
    counted = torch.arange(30, dtype=torch.float32).reshape(5, 6)
    return {
        "model": {
            "rows": counted,
            "columns": counted + 100,
            "replicated": counted[:2] + 200,
            "turned": counted.t() + 300,
            "of": of_every_dtype(counted[0]),
            "bool": counted[1] > 8,
            "number": torch.tensor(2.5),
            "nothing": torch.empty(0, 4),
        },
        "optimizer": {"state": [{"step": torch.tensor(7.0), "lr": 0.1}], "names": ["a", "b"]},
        "step": 42,
    }


def flat(value, path=()):
    """What is in it, by the names that torch gives."""
    if isinstance(value, dict):
        return {name: leaf for key, inner in value.items() for name, leaf in flat(inner, (*path, str(key))).items()}
    if isinstance(value, list) and any(isinstance(inner, dict) for inner in value):
        return {name: leaf for key, inner in enumerate(value) for name, leaf in flat(inner, (*path, str(key))).items()}
    return {".".join(path): value}


def save(rank, port, directory):
    warnings.simplefilter("ignore")
    logging.disable()
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=WORLD)
    mesh, saved = init_device_mesh("cpu", (WORLD,)), state()
    for name, placement in {"rows": Shard(0), "columns": Shard(1), "replicated": Replicate()}.items():
        saved["model"][name] = distribute_tensor(saved["model"][name], mesh, [placement])
    writer = dcp.FileSystemWriter(directory)
    (dcp.save if hasattr(dcp, "save") else dcp.save_state_dict)(saved, storage_writer=writer)
    dist.barrier()
    dist.destroy_process_group()


def told(value):
    if not isinstance(value, torch.Tensor):
        return {"object": repr(value)}
    elements = bytes(list(value.contiguous().clone().untyped_storage()))
    return {"dtype": str(value.dtype), "shape": list(value.shape), "sha256": hashlib.sha256(elements).hexdigest()}


def read(directory):
    """What this torch's own reader gives, into memory that holds something else."""
    known = dcp.FileSystemReader(directory).read_metadata().state_dict_metadata
    into = {
        name: torch.empty(entry.size, dtype=entry.properties.dtype).copy_(torch.ones(())) if hasattr(entry, "size") else None
        for name, entry in known.items()
    }
    if hasattr(dcp, "load_state_dict"):  # Before 2.4, `load` keeps what was there of what is no tensor.
        dcp.load_state_dict(into, dcp.FileSystemReader(directory), no_dist=True)
    else:
        dcp.load(into, storage_reader=dcp.FileSystemReader(directory))
    return into


def main(fixtures):
    warnings.simplefilter("ignore")
    # Torch writes the path that it is given into the metadata.
    os.chdir(fixtures)
    directory = Path(f"torch_{torch.__version__.split('+')[0]}")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.spawn(save, (port, directory), nprocs=WORLD)
    found, saved = read(directory), flat(state())
    assert found.keys() == saved.keys(), found.keys() ^ saved.keys()
    wrong = [name for name, value in saved.items() if told(found[name]) != told(value)]
    assert not wrong, wrong
    expected = json.loads(Path("expected.json").read_text())
    expected[directory.name] = {"ok": {name: told(value) for name, value in found.items()}}
    Path("expected.json").write_text(json.dumps(expected, indent=1) + "\n")
    print(directory, len(found), "entries,", sum(path.stat().st_size for path in directory.iterdir()), "bytes")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
