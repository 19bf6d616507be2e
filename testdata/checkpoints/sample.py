"""Makes the small checkpoint that is embedded in the library: `python sample.py OUT`.

Kept as it came out once (torch 2.15, Python 3.12), so that demo, examples and tests have one to read without torch.
"""

import os
import shutil
import sys
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp


def state() -> dict:
    """A model so small that its numbers can be looked at, its optimizer, and where training stands."""
    weight = torch.arange(16, dtype=torch.float32).reshape(4, 4)
    return {
        "model": {
            "weight": weight,
            "bias": torch.tensor([0.5, -0.5, 1.5, -1.5]),
            "embedding": torch.arange(24, dtype=torch.float32).reshape(6, 4).to(torch.bfloat16) / 8,
            # Stored as it lies in memory: column by column.
            "transposed": weight.t(),
            "mask": torch.tensor([True, False, True]),
        },
        "optimizer": {
            "step": torch.tensor(1200, dtype=torch.int64),
            "exp_avg": weight / 100,
        },
        "epoch": 3,
        "config": {"lr": 3e-4, "betas": [0.9, 0.95]},
    }


def main() -> None:
    """Saves it without the directory's own path in it."""
    out = Path(sys.argv[1])
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    os.chdir(out)
    dcp.save(state(), storage_writer=dcp.FileSystemWriter("."), no_dist=True)


if __name__ == "__main__":
    main()
