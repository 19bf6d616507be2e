"""What the checkpoint tests share: every load is done twice, by torch's own reader and by ours, and the outcomes are compared."""

from __future__ import annotations

import atexit
import contextlib
import datetime
import io
import os
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict

from shardfeed.checkpoint import Reader


VERSION = tuple(int(part) for part in torch.__version__.split(".")[:2])


def can_be_saved(dtype: torch.dtype) -> bool:
    """Torch 2.4 has some types that it cannot save."""
    try:
        torch.save(torch.empty(1, dtype=dtype), io.BytesIO())
    except KeyError:
        return False
    return True


DTYPES = [
    dtype
    for name in (
        "float64 float32 float16 bfloat16 float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz float8_e8m0fnu "
        "complex128 complex64 complex32 int64 int32 int16 int8 uint64 uint32 uint16 uint8 bool"
    ).split()
    if (dtype := getattr(torch, name, None)) is not None and can_be_saved(dtype)
]


def some_tensor(dtype: torch.dtype, shape: tuple[int, ...], seed: int = 0) -> torch.Tensor:
    """Random bits, so that every pattern of a number comes up, NaNs with payloads included."""
    generator = torch.Generator().manual_seed(seed)
    count = torch.Size(shape).numel()
    if dtype is torch.bool:
        return torch.randint(0, 2, shape, generator=generator).to(dtype)
    bits = torch.randint(0, 256, (count * dtype.itemsize,), generator=generator, dtype=torch.uint8)
    return bits.view(dtype).reshape(shape) if count else torch.empty(shape, dtype=dtype)


def save(state: dict[str, Any], path: Path, **options: Any) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save(state, storage_writer=FileSystemWriter(path, **options))
    return path


def item_of(path: Path, name: str) -> Any:
    """Where the first part of it lies."""
    stored = Reader(path).read_metadata().storage_data
    return next(info for index, info in stored.items() if index.fqn == name)


def bits(tensor: torch.Tensor) -> bytes:
    """A tensor's elements, row by row, as bytes."""
    # Not `contiguous`, which leaves a single element with whatever stride it has.
    plain = tensor.detach().resolve_conj().resolve_neg().cpu().clone(memory_format=torch.contiguous_format)
    if plain.is_quantized:
        plain = plain.int_repr()
    return plain.reshape(-1).view(torch.uint8).numpy().tobytes() if plain.numel() else b""


@dataclass
class Outcome:
    """A load: what became of the state dict, which calls the planner got, and the error if there was one."""

    state: dict[str, Any]
    calls: list[tuple[str, str]] = field(default_factory=list)
    error: BaseException | None = None
    reader: Any = None


class RecordingPlanner(DefaultLoadPlanner):
    """Notes every call that a reader makes, and overrides nothing else."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.calls: list[tuple[str, str]] = []

    def load_bytes(self, read_item: Any, value: io.BytesIO) -> None:
        self.calls.append(("load_bytes", read_item.dest_index.fqn))
        super().load_bytes(read_item, value)

    def resolve_tensor(self, read_item: Any) -> torch.Tensor:
        self.calls.append(("resolve_tensor", read_item.dest_index.fqn))
        return super().resolve_tensor(read_item)

    def commit_tensor(self, read_item: Any, tensor: torch.Tensor) -> None:
        self.calls.append(("commit_tensor", read_item.dest_index.fqn))
        super().commit_tensor(read_item, tensor)


class Halving(DefaultSavePlanner):
    """Saves some tensors in another type than the metadata say, as planners that convert do."""

    def resolve_data(self, write_item: Any) -> Any:
        data = super().resolve_data(write_item)
        return data.half() if write_item.index.fqn.startswith("halved") else data


class MemoryFiles:
    """A file system of torch's kind that lives in a dictionary."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files = files
        self.opened: list[str] = []

    @contextlib.contextmanager
    def create_stream(self, path: str, mode: str) -> Iterator[io.BytesIO]:
        assert mode == "rb"
        self.opened.append(path)
        if path not in self.files:
            raise FileNotFoundError(path)
        yield io.BytesIO(self.files[path])

    def concat_path(self, path: str, suffix: str) -> str:
        return f"{path}/{suffix}"

    def init_path(self, path: str) -> str:
        return str(path)


def load_alone(reader: Any, state: dict[str, Any], planner: Any = None) -> None:
    """One load in this process."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _load_state_dict(state, reader, no_dist=True, planner=planner)


def load_with(reader: Any, state: dict[str, Any], planner: Any = None) -> Outcome:
    """The same. Errors are part of the outcome."""
    outcome = Outcome(state, reader=reader)
    try:
        load_alone(reader, state, planner)
    except BaseException as error:  # torch's CheckpointException is no Exception.
        outcome.error = error
    outcome.calls = getattr(planner, "calls", [])
    return outcome


def leaves(state: Any, prefix: str = "") -> dict[str, Any]:
    """Everything in a nested state dict by its path."""
    if isinstance(state, dict):
        entries = [(str(key), value) for key, value in state.items()]
    elif isinstance(state, (list, tuple)):
        entries = [(str(index), value) for index, value in enumerate(state)]
    else:
        return {prefix: state}
    return {name: leaf for key, value in entries for name, leaf in leaves(value, f"{prefix}.{key}").items()}


def local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def memory(tensor: torch.Tensor) -> torch.Tensor:
    """All bytes of the memory that a tensor lies in."""
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.detach().untyped_storage())


def assert_same_leaf(name: str, ours: Any, torchs: Any) -> None:
    if not isinstance(torchs, torch.Tensor):
        assert type(ours) is type(torchs) and ours == torchs, name
        return
    assert type(ours) is type(torchs), name
    ours, torchs = local(ours), local(torchs)
    assert (ours.dtype, ours.shape, ours.device) == (torchs.dtype, torchs.shape, torchs.device), name
    assert (ours.stride(), ours.storage_offset()) == (torchs.stride(), torchs.storage_offset()), name
    assert ours.requires_grad == torchs.requires_grad, name
    assert bits(ours) == bits(torchs), name
    assert torch.equal(memory(ours), memory(torchs)), f"{name}: bytes around it were touched"


def same(
    path: Path,
    make: Callable[[], dict[str, Any]],
    planner: Callable[[], Any] = lambda: None,
    *,
    fallbacks: int | None = 0,
    **options: Any,
) -> Outcome:
    """Loads with torch's reader and with ours, the latter in several ways, and asserts that nothing can be told apart."""
    torchs = load_with(FileSystemReader(path), make(), planner())
    assert torchs.error is None, torchs.error
    ours = None
    for way in ({}, {"use_parallel": False}, {"num_workers": 3, "verify": True}, {"memory_budget": 1}):
        targets = make()
        before = {name: leaf for name, leaf in leaves(targets).items() if isinstance(leaf, torch.Tensor)}
        versions = {name: local(leaf)._version for name, leaf in before.items()}
        ours = load_with(Reader(path, **{**way, **options}), targets, planner())
        if ours.error is not None:
            raise ours.error
        assert ours.calls == torchs.calls
        ours_leaves, torchs_leaves = leaves(ours.state), leaves(torchs.state)
        assert list(ours_leaves) == list(torchs_leaves)
        for name, leaf in ours_leaves.items():
            assert_same_leaf(f"{way}: {name}", leaf, torchs_leaves[name])
            if name in before and isinstance(leaf, torch.Tensor):
                assert leaf is before[name], f"{name} was replaced"
                # As often as torch, or at least once.
                assert (local(leaf)._version > versions[name]) == (local(torchs_leaves[name])._version > versions[name]), name
        if fallbacks is not None:
            assert ours.reader.fallbacks == fallbacks, ours.reader.fallbacks
    assert ours is not None
    return ours


def in_world(rank: int, world: int, store: Path) -> None:
    """Begins a process of a job."""
    if VERSION < (2, 5):
        # For those that fail; see below.
        atexit.register(os._exit, 1)
    limit = datetime.timedelta(seconds=120)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world, timeout=limit)


def leave() -> None:
    """Ends it."""
    dist.barrier()
    if VERSION < (2, 5):
        # Its groups, once destroyed, now and then wait for ever for threads of their own.
        os._exit(0)
    dist.destroy_process_group()
