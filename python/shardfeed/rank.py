"""Which rank of how many this process is."""

import os
import sys
from typing import Any


def find_rank(rank: int | None, world_size: int | None, mesh: Any = None) -> tuple[int, int] | None:
    """Rank and world size: as given, or of a `DeviceMesh`, or of `RANK` and `WORLD_SIZE`, or of torch.distributed; None if nobody says.

    >>> find_rank(2, 8)
    (2, 8)
    """
    if (rank is None) != (world_size is None):
        raise ValueError(f"rank is {rank} and world_size is {world_size}; give both, or neither")
    if mesh is not None:
        if rank is not None:
            raise ValueError("give a mesh, or rank and world_size, not both")
        return _of_mesh(mesh)
    if rank is not None and world_size is not None:
        return rank, world_size
    if "RANK" in os.environ or "WORLD_SIZE" in os.environ:
        return _of_environment()
    return of_process_group()


def of_process_group() -> tuple[int, int] | None:
    """Rank and world size of torch.distributed, if it is initialized."""
    # Whoever has a process group has imported torch.
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return None


def refuse_ranks_that_came_later() -> None:
    """A loader that took itself for the only one would give every rank all of the data."""
    rank, world_size = of_process_group() or (0, 1)
    if world_size > 1:
        raise RuntimeError(
            f"this loader was made when nobody said which rank it is, so that it has all of the data, and now torch.distributed says {rank} of "
            f"{world_size}; make it after init_process_group, or pass rank and world_size (0 and 1 for all of the data on every rank)"
        )


def _of_environment() -> tuple[int, int]:
    found = []
    for name in ("RANK", "WORLD_SIZE"):
        text = os.environ.get(name)
        if text is None or not text.isdecimal():
            raise ValueError(
                f"the environment says RANK={os.environ.get('RANK')!r} and WORLD_SIZE={os.environ.get('WORLD_SIZE')!r}; "
                "set both to whole numbers, or pass rank and world_size"
            )
        found.append(int(text))
    return found[0], found[1]


def _of_mesh(mesh: Any) -> tuple[int, int]:
    """The place in a mesh of the data-parallel dimensions, counted row by row: ranks outside of them that share it get the same data."""
    if not hasattr(mesh, "get_coordinate"):
        raise TypeError(f"mesh is of type {type(mesh).__name__}; give a DeviceMesh of the data-parallel dimensions, as mesh[\"dp\"] of a larger one")
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        raise ValueError(f"this process is not in the mesh {mesh}; pass rank and world_size")
    rank, size = 0, 1
    for place, extent in zip(coordinate, mesh.mesh.shape, strict=True):
        rank, size = rank * extent + place, size * extent
    return rank, size
