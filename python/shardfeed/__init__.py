"""Feeds distributed training: Parquet to every rank in one order at any world size, and checkpoints at the speed of the hardware.

`TokenLoader` streams pre-tokenized Parquet. `shardfeed.torch.TokenDataset` puts it behind torch's DataLoader.
`shardfeed.checkpoint` reads PyTorch's distributed checkpoints. Importing this needs none of torch, NumPy and pyarrow.
"""

from shardfeed._native import ShardfeedError, __version__
from shardfeed.batch import Batch
from shardfeed.token_loader import TokenLoader

__all__ = ["Batch", "ShardfeedError", "TokenLoader", "__version__"]
