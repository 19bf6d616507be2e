"""What jobs of one to four ranks saved, of every kind of sharded tensor that torch has, loaded into such tensors by jobs of one to four."""

from __future__ import annotations

import importlib
import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from torch.distributed.checkpoint import FileSystemReader

from checkpoint_support import bits, in_world, leave
from shardfeed.checkpoint import Reader, load

MATRIX = os.environ.get("SHARDFEED_MATRIX")
SCRIPTS = Path(__file__).parents[2] / "testdata" / "checkpoints"
WORLDS = (1, 2, 3, 4)
KINDS = ("dtensor", "fsdp", "hsdp", "fsdp_tp", "sharded", "checkpointable")


def load_all(rank: int, world: int, root: Path) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    in_world(rank, world, root / "store")
    # The scripts that made the checkpoints know what they hold.
    sys.path.insert(0, str(SCRIPTS))
    ranks, sharded = (importlib.import_module(name) for name in ("ranks", "sharded"))
    counts = {}
    for kind in KINDS:
        counts[kind] = sum(load_kind(ranks, sharded, kind, saved, rank, world) for saved in WORLDS)
    (root / f"{rank}.json").write_text(json.dumps(counts))
    leave()


def load_kind(ranks: Any, sharded: Any, kind: str, saved: int, rank: int, world: int) -> int:
    """How many parts of tensors were compared."""
    assert MATRIX is not None
    path = Path(MATRIX) / f"reshard_{kind}_from_{saved}"
    states = [[sharded.poison(state) for state in ranks.loading_states(kind, world, rank)] for _ in range(3)]
    count = 0
    for torchs, ours, alone in zip(*states, strict=True):
        dcp.load(torchs, storage_reader=FileSystemReader(path))
        reader = Reader(path)
        dcp.load(ours, storage_reader=reader)
        load(alone, path, num_workers=2)
        assert reader.fallbacks == 0, (kind, saved, reader.fallbacks)
        for own, by_itself, expected in zip(*map(sharded.parts, (ours, alone, torchs)), strict=True):
            place = f"{kind}, saved by {saved}, loaded by rank {rank} of {world}: {expected[:3]}"
            assert own[:3] == by_itself[:3] == expected[:3], place
            assert bits(own[3]) == bits(by_itself[3]) == bits(expected[3]), place
            count += 1
    return count


@pytest.mark.skipif(MATRIX is None, reason="SHARDFEED_MATRIX does not say where testdata/checkpoints/matrix.py has written")
@pytest.mark.parametrize("world", WORLDS)
def test_every_world_loads_what_every_world_saved(world: int, tmp_path: Path) -> None:
    mp.spawn(load_all, (world, tmp_path), nprocs=world)
    for rank in range(world):
        counts = json.loads((tmp_path / f"{rank}.json").read_text())
        # A rank may have nothing of a small tensor, and none has nothing at all.
        assert set(counts) == set(KINDS) and min(counts.values()) > 0, counts
