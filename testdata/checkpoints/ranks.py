"""Checkpoints that several gloo processes save, and what each rank gets when
a job of another size loads them.

Four processes do it all.  For every world size the first so many of them form
a group, save, and part; then again to load.  Each writes what it was given to
a file, as hashes, and the process that started them makes cases of it.
"""

import contextlib
import datetime
import importlib
import json
import logging
import multiprocessing
import os
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import (
    FileSystemReader,
    FileSystemWriter,
    HuggingFaceStorageReader,
    HuggingFaceStorageWriter,
)
from torch.distributed.checkpoint._extension import ZStandard
from torch.distributed.checkpoint.filesystem import SerializationFormat

import sharded
from record import (
    RankReader,
    all_boxes,
    contents,
    elements,
    quiet,
    recorded,
    recorded_as_saved,
    sha256,
)
from values import made

WORLDS = (1, 2, 3, 4)
GROUP_TIMEOUT_S = 60
ALL_TIMEOUT_S = 240


# ---------------------------------------------------------------- what is saved

# Each makes the state of one rank of a world.
KINDS = {
    "dtensor": lambda world, rank: sharded.dtensors(world),
    "fsdp": lambda world, rank: sharded.fsdp(world),
    "hsdp": lambda world, rank: sharded.hsdp(world),
    "fsdp_tp": lambda world, rank: sharded.fsdp_tp(world),
    "sharded": sharded.sharded,
    "checkpointable": sharded.checkpointables,
}


def loading_states(kind, world, rank):
    """The states that a load fills: of DTensors one in each style, so that
    every style is loaded as every other."""
    if kind == "dtensor":
        return [sharded.dtensors(world, style) for style in sharded.STYLES]
    return [KINDS[kind](world, rank)]


def few(world):
    """Some tensors for cases about something else than sharding."""
    styles = ("rows", "columns", "whole")
    return {k: t for k, t in sharded.dtensors(world).items() if k.split(".")[0] in styles}


def write(directory, state, **options):
    dcp.save(state, storage_writer=FileSystemWriter(directory, sync_files=False, **options))


def write_hugging_face(directory, state, **options):
    writer = HuggingFaceStorageWriter(str(directory), save_distributed=True, **options)
    dcp.save(state, storage_writer=writer)


def save_kinds(out, world, rank):
    for kind, state_of in KINDS.items():
        state = sharded.fill(state_of(world, rank), kind)
        write(out / f"reshard_{kind}_from_{world}", state)


def save_rank_local(out, world, rank):
    """Each rank writes metadata of its own, about its own parts only."""
    state = sharded.fill(few(world), "rank_local")
    state |= {"plain": made("rank_local.plain", (4, 3)), "step": 11, "of_rank": f"rank {rank}"}
    writer = FileSystemWriter(out / "rank_local", sync_files=False)
    dcp.save(state, storage_writer=writer, use_collectives=False)


def save_zstd_mixed(out, world, rank):
    """Files of one checkpoint transformed differently: a rank's writer alone
    decides what happens to its items."""
    transforms = {0: [ZStandard()], 1: None, 2: [ZStandard(), ZStandard()]}[rank]
    state = sharded.fill(few(world), "zstd_mixed") | {f"step.{i}": i for i in range(6)}
    write(out / "zstd_mixed", state, _extensions=transforms)


def save_safetensors(out, world, rank):
    state = sharded.fill(few(world), "safetensors") | {"step": 5, "config": {"name": "x"}}
    directory = out / f"safetensors_from_{world}"
    write(directory, state, serialization_format=SerializationFormat.SAFETENSORS)


def save_hugging_face(out, world, rank):
    state = sharded.fill(few(world), "hf_sharded")
    write_hugging_face(out / "hf_sharded", state)
    files = {name: 1 + i % 3 for i, name in enumerate(state)}
    write_hugging_face(out / "hf_sharded_files", state, fqn_to_index_mapping=files)
    # Consolidation fails on tensors that are not floating point (torch.finfo).
    floats = {k: t for k, t in state.items() if t.dtype.is_floating_point}
    write_hugging_face(out / "hf_consolidated", floats, enable_consolidation=True)


SPECIAL = {
    1: [save_safetensors],
    2: [save_rank_local, save_safetensors, save_hugging_face],
    3: [save_zstd_mixed],
    4: [],
}


# ---------------------------------------------------------------- what is loaded


def load(case, state, reader):
    """Load a state of this rank and list what came."""
    dcp.load(sharded.poison(state), storage_reader=reader)
    return [
        {
            "case": case,
            "tensor": name,
            "start": start,
            "size": list(local.shape),
            "sha256": sha256(elements(local)),
        }
        for name, _, start, local in sharded.parts(state)
    ]


def load_kinds(out, world, rank):
    for kind in KINDS:
        for state in loading_states(kind, world, rank):
            for saved in WORLDS:
                case = f"reshard_{kind}_from_{saved}"
                yield from load(case, state, FileSystemReader(out / case))


def load_special(out, world, rank):
    state = few(world)
    if world == 2:
        yield from load(f"rank_local_{rank}", state, FileSystemReader(out / "rank_local"))
    yield from load("zstd_mixed", state, FileSystemReader(out / "zstd_mixed"))
    for case in ("hf_sharded", "hf_sharded_files"):
        yield from load(case, state, HuggingFaceStorageReader(str(out / case)))


# ---------------------------------------------------------------- processes


@contextlib.contextmanager
def group(rendezvous, world, rank):
    """A process group of the first `world` processes, met through a file."""
    timeout = datetime.timedelta(seconds=GROUP_TIMEOUT_S)
    dist.init_process_group(
        "gloo", init_method=f"file://{rendezvous}", world_size=world, rank=rank, timeout=timeout
    )
    yield
    # Nobody leaves while another still waits for an answer.
    dist.barrier()
    dist.destroy_process_group()


def one_rank(rank, out, scratch):
    # DTensor imports this on first use, which takes a second: better in all
    # processes at once than in one after the other while the rest wait.
    importlib.import_module("torch._dynamo")
    torch.set_num_threads(1)
    quiet()
    # torch logs a traceback on its way from missing global metadata to the
    # ranks' own.  What goes wrong for good still raises.
    logging.getLogger().setLevel(logging.ERROR)
    for world in WORLDS[rank:]:
        with group(scratch / f"save_{world}", world, rank):
            for save in (save_kinds, *SPECIAL[world]):
                save(out, world, rank)
    # All processes were in the last world, so all is saved by now.
    found = []
    for world in reversed(WORLDS[rank:]):
        with group(scratch / f"load_{world}", world, rank):
            found += load_kinds(out, world, rank)
            found += load_special(out, world, rank)
    (scratch / f"found_{rank}").write_text(json.dumps(found))


def wait_for(processes):
    """Until all have ended well; the first that has not ends the others' wait."""
    deadline = time.monotonic() + ALL_TIMEOUT_S
    while any(p.is_alive() for p in processes):
        if any(p.exitcode for p in processes):
            break
        if time.monotonic() > deadline:
            raise TimeoutError(f"the ranks have not finished in {ALL_TIMEOUT_S} s")
        time.sleep(0.1)
    if any(p.exitcode for p in processes):
        raise RuntimeError(f"a rank failed; exit codes {[p.exitcode for p in processes]}")


def run(out):
    """Save and load in four processes; what every rank found."""
    # Loopback only: a machine's own name need not resolve.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as scratch:
        scratch = Path(scratch)
        processes = [
            spawn.Process(target=one_rank, args=(r, out.resolve(), scratch), daemon=True)
            for r in range(max(WORLDS))
        ]
        try:
            for p in processes:
                p.start()
            wait_for(processes)
        finally:
            for p in processes:
                if p.is_alive():
                    p.kill()
                if p.pid:
                    p.join()
        return [
            entry
            for r in range(max(WORLDS))
            for entry in json.loads((scratch / f"found_{r}").read_text())
        ]


# ---------------------------------------------------------------- cases


def by_case(found):
    """What was found, by case, each part once: ranks of different worlds hold
    the same parts, and must have got the same bytes."""
    cases = {}
    for entry in found:
        case = entry.pop("case")
        key = entry["tensor"], tuple(entry["start"]), tuple(entry["size"])
        if cases.setdefault(case, {}).setdefault(key, entry) != entry:
            raise AssertionError(f"{case}: ranks got different bytes for {key}")
    return {case: list(entries.values()) for case, entries in cases.items()}


def case_of(name, reader, given, content=None, **more):
    return recorded(name, reader, contents(reader, content or name), given=given, **more)


def make(out):
    found = by_case(run(out))
    for kind in KINDS:
        for world in WORLDS:
            name = f"reshard_{kind}_from_{world}"
            yield case_of(name, FileSystemReader(out / name), found[name], kind)
    for rank in range(2):
        name, reader = f"rank_local_{rank}", RankReader(out / "rank_local", rank)
        yield case_of(name, reader, found[name], "rank_local", path="rank_local", rank=rank)
    yield case_of("zstd_mixed", FileSystemReader(out / "zstd_mixed"), found["zstd_mixed"])
    for name in ("hf_sharded", "hf_sharded_files"):
        yield case_of(name, HuggingFaceStorageReader(str(out / name)), found[name], "hf_sharded")
    consolidated = {"hf_consolidated": "hf_consolidated", "hf_parts": "hf_consolidated/sharded"}
    for name, path in consolidated.items():
        yield case_of(name, HuggingFaceStorageReader(str(out / path)), [], "hf_sharded", path=path)
    for world in (1, 2):
        name = f"safetensors_from_{world}"
        reader = FileSystemReader(out / name)
        saved = contents(reader, "safetensors")
        yield recorded_as_saved(name, reader, saved, all_boxes(saved))
