"""State dicts as a job of several ranks has them, in each way torch can shard
a tensor.  Nothing here has values yet: `fill` gives the ones to save and
`poison` those that a load must replace, through the planner's own view of
which part of which tensor a rank holds."""

import math

import torch
from torch.distributed._shard import sharded_tensor
from torch.distributed._shard.sharding_spec import ChunkShardingSpec, ShardMetadata
from torch.distributed.checkpoint._nested_dict import flatten_state_dict
from torch.distributed.checkpoint.metadata import MetadataIndex
from torch.distributed.checkpoint.planner_helpers import _create_chunk_list
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.checkpoint.utils import find_tensor_shard
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from values import checkpointable, cut, grid, made, poisoned

# ---------------------------------------------------------------- parts


def parts(state):
    """(name, global shape, start, this rank's tensor) for all parts of tensors
    that this rank holds."""
    for name, tensor in flatten_state_dict(state)[0].items():
        if not isinstance(tensor, torch.Tensor):
            continue
        shape = getattr(tensor, "global_shape", None) or tensor.size()
        for i, chunk in enumerate(_create_chunk_list(tensor)):
            local = find_tensor_shard(tensor, MetadataIndex(name, chunk.offsets, i))
            yield name, tuple(shape), tuple(chunk.offsets), local.detach()


def fill(state, prefix):
    for name, shape, start, local in parts(state):
        local.copy_(cut(made(f"{prefix}.{name}", shape, local.dtype), start, local.shape))
    return state


def poison(state):
    for _, _, _, local in parts(state):
        local.copy_(poisoned(local.shape, local.dtype))
    return state


# ---------------------------------------------------------------- DTensor

# Divisible or not, and with fewer rows or columns than ranks, so that some
# ranks have empty shards.
SHAPES = {
    "even": ((12, 24), torch.float32),
    "uneven": ((13, 7), torch.bfloat16),
    "two_rows": ((2, 9), torch.int64),
    "one_row": ((1, 3), torch.float32),
    "two_columns": ((9, 2), torch.uint8),
    "vector": ((11,), torch.float16),
    "cube": ((5, 6, 7), torch.int16),
    "no_rows": ((0, 4), torch.float32),
}

STYLES = ("rows", "columns", "whole", "grid", "replicated_rows", "rows_twice")

# The shape of the second kind of mesh, by world size.
MESHES = {1: (1, 1), 2: (2, 1), 3: (1, 3), 4: (2, 2)}


def placements(style, dims):
    last = dims - 1
    return {
        "rows": [Shard(0)],
        "columns": [Shard(last)],
        "whole": [Replicate()],
        "grid": [Shard(0), Shard(last)],
        "replicated_rows": [Replicate(), Shard(0)],
        "rows_twice": [Shard(0), Shard(0)],
    }[style]


def meshes(world):
    line = init_device_mesh("cpu", (world,))
    table = init_device_mesh("cpu", MESHES[world], mesh_dim_names=("outer", "inner"))
    return {1: line, 2: table}


def dtensors(world, load_style=None):
    """Tensors of all shapes in all styles; all in one style for loading."""
    by_dims, state = meshes(world), {}
    for style in STYLES:
        for name, (shape, dtype) in SHAPES.items():
            placed = placements(load_style or style, len(shape))
            # Without a source rank each rank cuts its own part, and no bytes travel.
            whole = torch.zeros(shape, dtype=dtype)
            state[f"{style}.{name}"] = distribute_tensor(
                whole, by_dims[len(placed)], placed, src_data_rank=None
            )
    return state


# ---------------------------------------------------------------- FSDP


class Model(torch.nn.Module):
    """Layers whose sizes no world size divides, and one that all do."""

    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(17, 10)
        self.up = torch.nn.Linear(10, 7)
        self.norm = torch.nn.LayerNorm(7)
        self.down = torch.nn.Linear(7, 12, bias=False)
        self.register_buffer("seen", torch.zeros(3, dtype=torch.int64))


def with_optimizer(model):
    optimizer = torch.optim.AdamW(model.parameters())
    # get_state_dict makes the optimizer's state, which a step would make later.
    model_state, optimizer_state = get_state_dict(model, optimizer)
    return {"model": model_state, "optim": optimizer_state, "epoch": 3}


def fsdp(world):
    model = Model()
    fully_shard(model.up, mesh=init_device_mesh("cpu", (world,)))
    return with_optimizer(fully_shard(model, mesh=init_device_mesh("cpu", (world,))))


def hsdp(world):
    """Replicated between the outer ranks, sharded between the inner ones."""
    mesh = init_device_mesh("cpu", MESHES[world], mesh_dim_names=("replicate", "shard"))
    return with_optimizer(fully_shard(Model(), mesh=mesh))


def fsdp_tp(world):
    """FSDP over tensor parallelism: some rows are sharded twice, by the inner
    mesh first (_StridedShard)."""
    mesh = init_device_mesh("cpu", MESHES[world], mesh_dim_names=("data", "tensor"))
    model = Model()
    parallelize_module(model, mesh["tensor"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return with_optimizer(fully_shard(model, mesh=mesh["data"]))


# ---------------------------------------------------------------- ShardedTensor


def in_grid(world, rank, shape, borders, dtype):
    """A ShardedTensor cut at `borders`, its shards dealt out to the ranks."""
    shards = []
    for start, size in grid(shape, borders)[rank::world]:
        where = ShardMetadata(start, size, f"rank:{rank}/cpu")
        shards.append(sharded_tensor.Shard(torch.zeros(size, dtype=dtype), where))
    return sharded_tensor.init_from_local_shards(shards, *shape)


def sharded(world, rank):
    placement = [f"rank:{r}/cpu" for r in range(world)]
    rows, columns = ChunkShardingSpec(0, placement), ChunkShardingSpec(1, placement)
    return {
        "rows": sharded_tensor.zeros(rows, 13, 5),
        "columns": sharded_tensor.zeros(columns, 6, 11, dtype=torch.float64),
        "grid": in_grid(world, rank, (9, 14), [[0, 2, 7], [0, 1, 9]], torch.bfloat16),
        "cube": in_grid(world, rank, (4, 5, 6), [[0, 3], [0, 4], [0, 1, 5]], torch.uint8),
    }


# ---------------------------------------------------------------- CheckpointableTensor


def dealt_rows(world, rank, rows, columns, dtype):
    """One buffer with this rank's rows: every `world`-th pair of rows is a
    shard, each with two columns of padding around it."""
    starts = range(2 * rank, rows, 2 * world)
    sizes = [(min(2, rows - s), columns) for s in starts]
    buffer = torch.zeros((2 * len(sizes), columns + 2), dtype=dtype)
    return checkpointable(
        buffer,
        (rows, columns),
        [(s, 0) for s in starts],
        [(2 * i, 1) for i in range(len(sizes))],
        sizes,
    )


def one_block(world, rank, shape, dtype):
    """This rank's columns, as a tensor that holds nothing else."""
    width = math.ceil(shape[1] / world)
    first = min(rank * width, shape[1])
    size = (shape[0], min(width, shape[1] - first))
    return checkpointable(torch.zeros(size, dtype=dtype), shape, [(0, first)], [(0, 0)], [size])


def checkpointables(world, rank):
    return {
        "dealt": dealt_rows(world, rank, 19, 6, torch.float32),
        "block": one_block(world, rank, (5, 10), torch.int16),
        "wide_block": one_block(world, rank, (3, 1001), torch.float64),
    }
