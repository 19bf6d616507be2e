"""Every checkpoint of `testdata/checkpoints/matrix.py`, loaded whole by torch's reader and by ours."""

from __future__ import annotations

import json
import os
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from checkpoint_support import bits, leaves, load_with
from shardfeed.checkpoint import Reader

MATRIX = os.environ.get("SHARDFEED_MATRIX")


class Filled(_EmptyStateDictLoadPlanner):
    """Makes its tensors from the metadata, and fills them with something: what nobody writes to must not be left to chance."""

    def set_up_planner(self, state_dict: Any, metadata: Any = None, is_coordinator: bool = False) -> None:
        super().set_up_planner(state_dict, metadata, is_coordinator)
        for leaf in leaves(state_dict).values():
            if isinstance(leaf, torch.Tensor) and leaf.numel() and not leaf.is_quantized:
                leaf.reshape(-1).view(torch.uint8).fill_(0xA5)


class RankReader(FileSystemReader):
    """Reads one rank's metadata where there are no others."""

    own_rank: int | None = None

    def read_metadata(self, *args: Any, **kwargs: Any) -> Any:
        return super().read_metadata(*args, **({"rank": self.own_rank} if self.own_rank is not None else kwargs))


class OurRankReader(Reader):
    own_rank: int | None = None

    def read_metadata(self, *args: Any, **kwargs: Any) -> Any:
        return super().read_metadata(*args, **({"rank": self.own_rank} if self.own_rank is not None else kwargs))


@pytest.mark.skipif(MATRIX is None, reason="SHARDFEED_MATRIX does not say where testdata/checkpoints/matrix.py has written")
def test_everything_that_torch_reads_is_read_alike() -> None:
    assert MATRIX is not None
    cases = json.loads((Path(MATRIX) / "cases.json").read_text())["cases"]
    tensors, seen, refused = 0, 0, []
    for case in cases:
        path = Path(MATRIX) / case["path"]
        rank = case.get("rank")
        outcomes = []
        for kind in (RankReader, OurRankReader):
            reader = kind(path)
            reader.own_rank = rank
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                outcomes.append(load_with(reader, {}, Filled()))
        torchs, ours = outcomes
        if torchs.error is not None:
            # Torch cannot read it, or not like this: safetensors, and metadata of other systems.
            refused.append(case["name"])
            continue
        assert ours.error is None, f"{case['name']}: {ours.error}"
        seen += 1
        own, expected = leaves(ours.state), leaves(torchs.state)
        assert list(own) == list(expected), case["name"]
        quantized = 0
        for name, value in expected.items():
            if isinstance(value, torch.Tensor):
                assert own[name].dtype is value.dtype and bits(own[name]) == bits(value), f"{case['name']}: {name}"
                tensors += 1
                quantized += value.is_quantized
            else:
                assert repr(own[name]) == repr(value), f"{case['name']}: {name}"
        metadata = ours.reader.read_metadata()
        odd = [
            entry
            for entry in metadata.state_dict_metadata.values()
            if isinstance(entry, TensorStorageMetadata) and str(entry.properties.dtype).startswith("torch.q")
        ]
        assert ours.reader.fallbacks == len(odd), f"{case['name']}: {ours.reader.fallbacks} went through torch"
    print(f"{tensors} tensors of {seen} checkpoints; torch refuses {len(refused)}: {sorted(set(refused))}")
    assert tensors > 1000 and seen > 50, (tensors, seen, refused)
