"""Jobs of one to four processes load each other's checkpoints, with torch's reader and with ours."""

from __future__ import annotations

import os
import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.device_mesh import init_device_mesh

from checkpoint_support import VERSION, assert_same_leaf, in_world, leave, leaves, local
from shardfeed import ShardfeedError
from shardfeed.checkpoint import Reader, load

WORLDS = (1, 2, 3, 4)


def distribute(value: torch.Tensor, mesh: Any, dim: int | None) -> torch.Tensor:
    if VERSION >= (2, 5):
        from torch.distributed.tensor import Replicate, Shard, distribute_tensor
    else:
        from torch.distributed._tensor import Replicate, Shard, distribute_tensor
    return distribute_tensor(value, mesh, [Replicate() if dim is None else Shard(dim)])


def sharded_model(mesh: Any, seed: int) -> torch.nn.Module:
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(seed)
    # Seven and five rows: uneven for most worlds.
    model = torch.nn.Sequential(torch.nn.Linear(6, 7), torch.nn.Linear(7, 5), torch.nn.Linear(5, 1))
    return fully_shard(model, mesh=mesh)


def make_state(world: int, seed: int) -> dict[str, Any]:
    """Plain, replicated and sharded tensors; some ranks have nothing of some of them."""
    mesh = init_device_mesh("cpu", (world,))
    generator = torch.Generator().manual_seed(seed)
    state: dict[str, Any] = {
        "plain": torch.randn(5, 3, generator=generator),
        "rows": distribute(torch.randn(10, 6, generator=generator), mesh, 0),
        "columns": distribute(torch.randn(40, 50, generator=generator), mesh, 1),
        "replicated": distribute(torch.randn(4, 3, generator=generator), mesh, None),
        "two_rows": distribute(torch.randn(2, 5, generator=generator), mesh, 0),
        "no_row": distribute(torch.randn(0, 5, generator=generator), mesh, 0),
        "half": distribute(torch.randn(9, 4, generator=generator).to(torch.bfloat16), mesh, 0),
        "step": seed,
    }
    if VERSION >= (2, 9):
        state["model"] = sharded_model(mesh, seed).state_dict()
    return state


def save_in(rank: int, world: int, root: Path) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    in_world(rank, world, root / f"save-{world}")
    dcp.save(make_state(world, seed=100 + world), checkpoint_id=root / f"from-{world}")
    leave()


def load_in(rank: int, world: int, root: Path) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    in_world(rank, world, root / f"load-{world}")
    for saved in WORLDS:
        path = root / f"from-{saved}"
        torchs, ours, alone = (make_state(world, seed=7) for _ in range(3))
        dcp.load(torchs, storage_reader=FileSystemReader(path))
        versions = {name: local(leaf)._version for name, leaf in leaves(ours).items() if isinstance(leaf, torch.Tensor)}
        reader = Reader(path)
        dcp.load(ours, storage_reader=reader)
        load(alone, path, num_workers=2)
        assert reader.fallbacks == 0 and reader.staged == 0, (saved, world)
        assert ours["step"] == 100 + saved
        for name, leaf in leaves(torchs).items():
            place = f"saved by {saved}, loaded by rank {rank} of {world}: {name}"
            assert_same_leaf(place, leaves(ours)[name], leaf)
            assert_same_leaf(place, leaves(alone)[name], leaf)
            if isinstance(leaf, torch.Tensor) and local(leaf).numel():
                assert local(leaves(ours)[name])._version > versions[name], place
    (root / f"loaded-{world}-{rank}").touch()
    leave()


def test_any_world_loads_what_any_world_saved(tmp_path: Path) -> None:
    for job in (save_in, load_in):
        for world in WORLDS:
            mp.spawn(job, (world, tmp_path), nprocs=world, join=True)
    assert len(list(tmp_path.glob("loaded-*"))) == sum(WORLDS)


def fail_on_one(rank: int, root: str) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    in_world(rank, 2, Path(root) / "store")
    path = Path(root) / "saved"
    state = {f"t{index}": torch.full((1000,), float(index)) for index in range(4)}
    dcp.save(state, checkpoint_id=path)
    dist.barrier()
    # The second rank sees a file that is cut short.
    own = Path(root) / f"own-{rank}"
    own.mkdir()
    for file in path.iterdir():
        (own / file.name).write_bytes(file.read_bytes())
    if rank == 1:
        for file in own.glob("*.distcp"):
            os.truncate(file, file.stat().st_size // 2)
    with pytest.raises(CheckpointException) as failed:
        dcp.load({name: torch.zeros(1000) for name in state}, storage_reader=Reader(own))
    # Both ranks know what happened to the second one.
    assert list(failed.value.failures) == [1]
    error = failed.value.failures[1][0]
    assert isinstance(error, ShardfeedError) and "cut short" in str(error) and "own-1" in str(error)
    (Path(root) / f"told-{rank}").touch()
    leave()


def test_an_error_on_one_rank_is_told_to_the_other(tmp_path: Path) -> None:
    mp.spawn(fail_on_one, (str(tmp_path),), nprocs=2, join=True)
    assert (tmp_path / "told-0").exists() and (tmp_path / "told-1").exists()


def save_apart(rank: int, root: str) -> None:
    warnings.simplefilter("ignore")
    in_world(rank, 2, Path(root) / "store")
    path = Path(root) / "saved"
    dcp.save({"a": torch.full((3,), float(rank)), "n": rank}, checkpoint_id=path, use_collectives=False)
    dist.barrier()
    torchs, ours = ({"a": torch.zeros(3), "n": -1} for _ in range(2))
    dcp.load(torchs, storage_reader=FileSystemReader(path))
    dcp.load(ours, storage_reader=Reader(path))
    assert ours["n"] == torchs["n"] == rank and torch.equal(ours["a"], torchs["a"])
    alone = {"a": torch.zeros(3), "n": -1}
    load(alone, path)
    assert alone["n"] == rank and torch.equal(alone["a"], torchs["a"])
    leave()


@pytest.mark.skipif(VERSION < (2, 9), reason="torch before 2.9 does not save without collectives")
def test_each_rank_with_metadata_of_its_own(tmp_path: Path) -> None:
    mp.spawn(save_apart, (str(tmp_path),), nprocs=2, join=True)


class OwnPlanner(dcp.DefaultLoadPlanner):
    def commit_tensor(self, read_item: Any, tensor: torch.Tensor) -> None:
        fail_in_own_way()


def fail_in_own_way(*_: Any) -> None:
    class Own(Exception):
        """Known nowhere else, so that it cannot be pickled."""

    raise Own("on one rank")


def one_fails_in(rank: int, world: int, root: Path) -> None:
    warnings.simplefilter("ignore")
    in_world(rank, world, root / "one-fails")
    state = {"a": torch.ones(1000)}
    path = root / "saved"
    dcp.save(state, checkpoint_id=path)

    def load_with_reader(reader: Reader, planner: Any = None) -> str:
        with pytest.raises(CheckpointException) as raised:
            dcp.load({"a": torch.zeros(1000)}, storage_reader=reader, planner=planner)
        return str(raised.value)

    # A directory without the files of the checkpoint, as on a machine that a copy has not reached; and one whose metadata nobody can read,
    # which is rank 0's affair, since it reads them for all.
    without, unreadable = root / "without", root / "unreadable"
    if rank == 0:
        # By one rank alone: a file that two write is empty for a moment when the second begins.
        without.mkdir()
        shutil.copy(path / ".metadata", without)
        unreadable.mkdir()
        (unreadable / ".metadata").write_bytes(b"nothing")
    dist.barrier()
    for failing in range(world):
        text = load_with_reader(Reader(path, progress=fail_in_own_way if rank == failing else None))
        assert "Own: on one rank" in text and f"rank {failing}" in text.lower()
        text = load_with_reader(Reader(path), OwnPlanner() if rank == failing else None)
        assert "Own: on one rank" in text and f"rank {failing}" in text.lower()
        text = load_with_reader(Reader(without if rank == failing else path))
        assert "FileNotFoundError" in text and f"rank {failing}" in text.lower()
    assert ".metadata: not a readable pickle" in load_with_reader(Reader(unreadable if rank == 0 else path))
    leave()


def test_what_fails_on_one_rank_is_told_on_all_and_nobody_waits(tmp_path: Path) -> None:
    mp.spawn(one_fails_in, (2, tmp_path), nprocs=2)
