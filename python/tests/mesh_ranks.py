"""Says what a rank of a mesh of 2 × 2 reads. Run by torchrun."""

import os
import sys

import torch
from shardfeed import TokenLoader
from torch.distributed.device_mesh import init_device_mesh

torch.distributed.init_process_group("gloo")
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
settings = {"seq_len": 32, "global_batch": 8}
loader = TokenLoader(sys.argv[1], **settings, mesh=mesh["dp"])
both = TokenLoader(sys.argv[1], **settings, mesh=mesh)
print(f"rank {os.environ['RANK']}: {loader.rank} of {loader.world_size}, both {both.rank} of {both.world_size}\n", end="", flush=True)
torch.distributed.destroy_process_group()
