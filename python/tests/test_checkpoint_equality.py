"""`Reader` gives what torch's own reader gives, bit for bit."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import os
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner

from checkpoint_support import DTYPES, VERSION, Halving, RecordingPlanner, in_world, leave, load_with, same, save, some_tensor
from shardfeed import ShardfeedError
from shardfeed.checkpoint import Reader, _reader


def test_every_dtype_comes_as_it_was_saved(tmp_path: Path) -> None:
    saved = {str(dtype): some_tensor(dtype, (5, 7), seed) for seed, dtype in enumerate(DTYPES)}
    save(saved, tmp_path)
    ours = same(tmp_path, lambda: {name: torch.zeros_like(tensor) for name, tensor in saved.items()})
    assert ours.reader.staged == 0


def test_each_dtype_is_cast_to_each_other_as_copy_does_or_refused_as_by_torch(tmp_path: Path) -> None:
    # Nothing else can be made that of bits without a meaning.
    pairs = {f"{source} to {target}": (source, target) for source in DTYPES for target in [*DTYPES, torch.bits8]}
    saved = {name: some_tensor(source, (5, 7), seed) for seed, (name, (source, _)) in enumerate(pairs.items())}
    save(saved, tmp_path)

    def target_of(name: str) -> torch.Tensor:
        dtype = pairs[name][1]
        return torch.zeros(35 * dtype.itemsize, dtype=torch.uint8).view(dtype).reshape(5, 7)

    def is_cast(name: str) -> bool:
        with warnings.catch_warnings(), contextlib.suppress(Exception):
            warnings.simplefilter("ignore")
            target_of(name).copy_(saved[name])
            return True
        return False

    cast = [name for name in pairs if is_cast(name)]
    ours = same(tmp_path, lambda: {name: target_of(name) for name in cast})
    assert ours.reader.staged == sum(source is not target for source, target in map(pairs.__getitem__, cast))
    assert len(cast) > len(DTYPES) ** 2 // 2
    refused = [name for name in pairs if name not in cast]
    assert len(refused) >= len(DTYPES)
    for name in refused:
        causes = []
        for kind in (FileSystemReader, Reader):
            error = load_with(kind(tmp_path), {name: target_of(name)}).error
            assert isinstance(error, CheckpointException), f"{kind}: {name}"
            causes.append(type(error.failures[0][0]))
        assert causes[0] is causes[1], name


def saved_layouts() -> dict[str, torch.Tensor]:
    base = torch.randn(4, 6, generator=torch.Generator().manual_seed(1))
    return {
        "contiguous": base.clone(),
        "transposed": base.reshape(6, 4).t(),
        "every_second": torch.randn(4, 12)[:, ::2],
        "expanded": torch.randn(4, 1).expand(4, 6),
        "offset": torch.randn(7, 6)[3:],
        "fortran": torch.empty_strided((4, 6), (1, 4)).copy_(base),
    }


TARGET_LAYOUTS = {
    "contiguous": lambda: torch.zeros(4, 6),
    "transposed": lambda: torch.zeros(6, 4).t(),
    "every_second": lambda: torch.zeros(4, 12)[:, ::2],
    "inner": lambda: torch.zeros(9, 11)[2:6, 3:9],
    "offset": lambda: torch.zeros(7, 6)[3:],
    "parameter": lambda: torch.nn.Parameter(torch.zeros(4, 6)),
    "no_grad_parameter": lambda: torch.nn.Parameter(torch.zeros(4, 6), requires_grad=False),
    "shared": lambda: torch.zeros(4, 6).share_memory_(),
    "double": lambda: torch.zeros(4, 6, dtype=torch.float64),
}


@pytest.mark.parametrize("layout", TARGET_LAYOUTS)
def test_every_saved_layout_fits_every_target(tmp_path: Path, layout: str) -> None:
    saved = saved_layouts()
    save(saved, tmp_path)
    ours = same(tmp_path, lambda: {name: TARGET_LAYOUTS[layout]() for name in saved})
    assert ours.reader.staged == (len(saved) if layout == "double" else 0)


def in_every_layout() -> dict[str, torch.Tensor]:
    """Of one shape, in each layout that can be saved."""
    shape = (2, 3, 4, 5)
    base = torch.randn(shape, generator=torch.Generator().manual_seed(2))
    wave = torch.randn(shape, dtype=torch.complex64, generator=torch.Generator().manual_seed(3))
    return {
        "contiguous": base.clone(),
        "transposed": torch.randn(2, 3, 5, 4).transpose(2, 3),
        "permuted": torch.randn(5, 2, 4, 3).permute(1, 3, 2, 0),
        "channels_last": base.to(memory_format=torch.channels_last),
        "every_second": torch.randn(2, 3, 4, 10)[..., ::2],
        "expanded": torch.randn(2, 1, 4, 1).expand(shape),
        "conjugate": wave.conj(),
        "negative": wave.conj().imag,
    }


def meta_made_real(like: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(torch.empty(like.shape, dtype=like.dtype, device="meta"), device="cpu")


def with_gradient(like: torch.Tensor) -> torch.Tensor:
    parameter = torch.nn.Parameter(torch.zeros(like.shape, dtype=like.dtype))
    parameter.grad = torch.ones_like(parameter)
    return parameter


# For a tensor of any type and four dimensions, memory in another layout.
IN_EVERY_LAYOUT: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "contiguous": lambda like: torch.zeros(like.shape, dtype=like.dtype),
    "permuted": lambda like: torch.zeros(like.shape[::-1], dtype=like.dtype).permute(3, 2, 1, 0),
    "channels_last": lambda like: torch.zeros(like.shape, dtype=like.dtype).to(memory_format=torch.channels_last),
    "inner": lambda like: torch.zeros([size + 3 for size in like.shape], dtype=like.dtype)[1:-2, 2:-1, 1:-2, 3:],
    "offset": lambda like: torch.zeros((9, *like.shape[1:]), dtype=like.dtype)[4:6],
    "with_gradient": with_gradient,
    "meta_made_real": meta_made_real,
    "lazily_conjugate": lambda like: torch.zeros(like.shape, dtype=like.dtype).conj(),
    "lazily_negative": lambda like: torch._neg_view(torch.zeros(like.shape, dtype=like.dtype)),
}
if torch.cuda.is_available():
    IN_EVERY_LAYOUT["pinned"] = lambda like: torch.zeros(like.shape, dtype=like.dtype).pin_memory()
    IN_EVERY_LAYOUT["cuda"] = lambda like: torch.zeros(like.shape, dtype=like.dtype, device="cuda")
    IN_EVERY_LAYOUT["cuda_permuted"] = lambda like: torch.zeros(like.shape[::-1], dtype=like.dtype, device="cuda").permute(3, 2, 1, 0)


@pytest.mark.parametrize("target", IN_EVERY_LAYOUT)
def test_every_layout_that_can_be_saved_fits_every_one_that_can_be_loaded(tmp_path: Path, target: str) -> None:
    saved = in_every_layout()
    save(saved, tmp_path)
    make = IN_EVERY_LAYOUT[target]
    same(tmp_path, lambda: {name: make(tensor) for name, tensor in saved.items()})
    same(tmp_path, lambda: {name: make(tensor) for name, tensor in saved.items()}, RecordingPlanner)


def test_memory_that_is_shared_between_processes_is_filled_in_place(tmp_path: Path) -> None:
    save({"a": torch.arange(12.0)}, tmp_path)
    shared = torch.zeros(12).share_memory_()
    address = shared.data_ptr()
    assert load_with(Reader(tmp_path), {"a": shared}).error is None
    assert shared.is_shared() and shared.data_ptr() == address
    assert torch.equal(shared, torch.arange(12.0))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="pinned and device memory need a GPU")
def test_pinned_and_device_memory(tmp_path: Path) -> None:
    save({"a": torch.randn(4, 6), "b": torch.randn(4, 6)}, tmp_path)
    same(tmp_path, lambda: {"a": torch.zeros(4, 6).pin_memory(), "b": torch.zeros(4, 6, device="cuda")})


def test_channels_last_and_lazy_bits(tmp_path: Path) -> None:
    saved = {
        "channels_last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        "conjugate": torch.randn(3, 4, dtype=torch.complex64).conj(),
        "negative": torch.randn(3, 4, dtype=torch.complex64).conj().imag,
    }
    save(saved, tmp_path)
    same(
        tmp_path,
        lambda: {
            "channels_last": torch.zeros(2, 3, 4, 5),
            "conjugate": torch.zeros(3, 4, dtype=torch.complex64),
            "negative": torch.zeros(3, 4),
        },
    )
    lazy = same(
        tmp_path,
        lambda: {
            "channels_last": torch.zeros(2, 3, 4, 5).to(memory_format=torch.channels_last),
            "conjugate": torch.zeros(3, 4, dtype=torch.complex64).conj(),
            "negative": torch.zeros(3, 4, dtype=torch.complex64).conj().imag,
        },
    )
    assert lazy.reader.staged == 2


def test_every_shape(tmp_path: Path) -> None:
    shapes = [(), (0,), (1,), (3, 0, 2), (1, 1, 1), (2, 3, 2, 3, 2), (17, 13), (1024,), (1025,), (40_000,), (300_001,)]
    saved = {str(shape): some_tensor(torch.float32, shape, seed) for seed, shape in enumerate(shapes)}
    save(saved, tmp_path)
    ours = same(tmp_path, lambda: {name: torch.full_like(tensor, 7) for name, tensor in saved.items()})
    assert (ours.state["(0,)"].shape, ours.state["(3, 0, 2)"].shape) == ((0,), (3, 0, 2))


def test_items_around_the_sizes_at_which_they_are_read_in_another_way(tmp_path: Path) -> None:
    limits = [64, 4 << 10, 16 << 10, 64 << 10, 128 << 10, 256 << 10, 512 << 10, 1 << 20, 8 << 20]
    save({"a": torch.zeros(1000, dtype=torch.uint8)}, tmp_path / "one")
    around = next(iter(FileSystemReader(tmp_path / "one").read_metadata().storage_data.values())).length - 1000
    # By their elements, and by what torch makes of them.
    sizes = {limit + more - less for limit in limits for more in (-1, 0, 1) for less in (0, around) if limit + more - less > 2}
    saved = {str(size): (torch.arange(size) * 2654435761 >> 7).to(torch.uint8) for size in sorted(sizes)}
    save(saved, tmp_path / "all")
    same(tmp_path / "all", lambda: {name: torch.zeros_like(tensor) for name, tensor in saved.items()})

    class Inner(DefaultLoadPlanner):
        """All but the first and the last element."""

        def create_local_plan(self) -> Any:
            def inner(item: Any) -> Any:
                one, less = torch.Size([1]), torch.Size([item.lengths[0] - 2])
                return dataclasses.replace(item, storage_offsets=one, dest_offsets=one, lengths=less)

            plan = super().create_local_plan()
            return dataclasses.replace(plan, items=[inner(item) for item in plan.items])

    ours = same(tmp_path / "all", lambda: {name: torch.zeros_like(tensor) for name, tensor in saved.items()}, Inner)
    assert all(torch.equal(ours.state[name][1:-1], tensor[1:-1]) and not ours.state[name][0] for name, tensor in saved.items())
    assert ours.reader.staged == 0


def test_nested_structures_and_objects(tmp_path: Path) -> None:
    saved = {
        "model": {"weight": torch.randn(3, 4), "names": ["a", {"b": 1}], "none": None},
        "optimizer": {"state": {0: {"step": torch.tensor(3.0), "sums": [torch.randn(2), torch.randn(3)]}}},
        "step": 7,
        "text": "ä" * 1000,
    }
    save(saved, tmp_path)

    def make() -> dict[str, Any]:
        return {
            "model": {"weight": torch.zeros(3, 4), "names": ["", {"b": 0}], "none": 1},
            "optimizer": {"state": {0: {"step": torch.tensor(0.0), "sums": [torch.zeros(2), torch.zeros(3)]}}},
            "step": 0,
            "text": "",
        }

    assert same(tmp_path, make).state["step"] == 7
    same(tmp_path, make, RecordingPlanner)
    same(tmp_path, make, lambda: DefaultLoadPlanner(flatten_state_dict=True))


def test_parts_of_a_checkpoint(tmp_path: Path) -> None:
    save({"a": torch.randn(3), "b": torch.randn(3), "n": 1}, tmp_path)
    same(tmp_path, lambda: {"b": torch.zeros(3)})
    same(tmp_path, lambda: {"b": torch.zeros(3), "c": torch.ones(2)}, lambda: DefaultLoadPlanner(allow_partial_load=True))
    missing = load_with(Reader(tmp_path), {"c": torch.ones(2)})
    assert "Missing key in checkpoint state_dict: c" in str(missing.error)
    # Torch 2.4 lets it pass.
    torchs, ours = (load_with(reader(tmp_path), {"a": torch.ones(2)}) for reader in (FileSystemReader, Reader))
    assert str(torchs.error).splitlines()[-1:] == str(ours.error).splitlines()[-1:]
    assert torch.equal(torchs.state["a"], ours.state["a"])


@pytest.mark.parametrize("options", [{"thread_count": 3}, {"single_file_per_rank": False}], ids=str)
def test_tied_and_overlapping_destinations_keep_torchs_order(tmp_path: Path, options: dict[str, Any]) -> None:
    saved = {name: torch.full((50, 60), float(index)) for index, name in enumerate("abcdef")}
    save(saved, tmp_path, **options)

    def tied() -> dict[str, Any]:
        memory = torch.zeros(60, 120)
        return {
            "a": memory[:50, :60],
            "b": memory[:50, :60],
            "c": memory[5:55, 30:90],
            "d": memory[10:, 60:],
            "e": memory[10:, 60:],
            "f": memory.t()[60:110, :60],
        }

    same(tmp_path, tied)
    same(tmp_path, tied, RecordingPlanner)

    def mixed() -> dict[str, Any]:
        memory = torch.zeros(50, 60, dtype=torch.float32)
        return {"a": memory, "b": memory.view(torch.int32), "c": memory, "d": torch.zeros(50, 60), "e": memory, "f": memory.view(torch.int32)}

    assert same(tmp_path, mixed).reader.staged == 5


def test_columns_that_lie_between_each_other_are_filled_in_place(tmp_path: Path) -> None:
    saved = {str(index): torch.randn(40, 25) for index in range(4)}
    save(saved, tmp_path)

    def columns() -> dict[str, Any]:
        memory = torch.zeros(40, 100)
        return {str(index): memory[:, index * 25 : (index + 1) * 25] for index in range(4)}

    assert same(tmp_path, columns).reader.staged == 0


class PairedPlanner(RecordingPlanner):
    """As Megatron's: loads into a tensor of its own, and asserts that commit directly follows its own resolve."""

    def resolve_tensor(self, read_item: Any) -> torch.Tensor:
        assert getattr(self, "open", None) is None
        target = super().resolve_tensor(read_item)
        self.open = (read_item, target, torch.empty_like(target))
        return self.open[2]

    def commit_tensor(self, read_item: Any, tensor: torch.Tensor) -> None:
        item, target, own = self.open
        assert item is read_item and own.data_ptr() == tensor.data_ptr()
        target.copy_(own.flip(0) if own.dim() else own)
        self.open = None
        super().commit_tensor(read_item, tensor)


class RenamingPlanner(RecordingPlanner):
    """Finds under one name what was saved under another."""

    def lookup_tensor(self, index: Any) -> torch.Tensor:
        return super().lookup_tensor(index)

    def create_local_plan(self) -> Any:
        renamed = {name.removeprefix("new_"): value for name, value in self.state_dict.items()}
        self.state_dict = renamed
        return super().create_local_plan()


class BytesPlanner(DefaultLoadPlanner):
    """Takes objects for itself, and is torch's own for tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, str]] = []

    def load_bytes(self, read_item: Any, value: io.BytesIO) -> None:
        self.calls.append((read_item.dest_index.fqn, repr(torch.load(value, weights_only=False))))


@pytest.mark.parametrize("planner", [RecordingPlanner, PairedPlanner, BytesPlanner])
def test_planners_get_torchs_calls_in_torchs_order(tmp_path: Path, planner: Any) -> None:
    saved = {f"t{index}": torch.randn(index + 1, 3) for index in range(20)}
    saved |= {f"o{index}": {1, index} for index in range(3)}
    save(saved, tmp_path, thread_count=3)

    def make() -> dict[str, Any]:
        return {name: torch.zeros_like(value) if isinstance(value, torch.Tensor) else None for name, value in saved.items()}

    assert same(tmp_path, make, planner).calls


def test_a_planner_that_renames(tmp_path: Path) -> None:
    save({"a": torch.randn(3, 4), "b": torch.randn(2)}, tmp_path)
    ours = same(tmp_path, lambda: {"new_a": torch.zeros(3, 4), "new_b": torch.zeros(2)}, RenamingPlanner)
    assert ours.calls[0] == ("resolve_tensor", "a") and ours.state["new_a"].abs().sum() > 0


def test_a_planner_whose_method_was_replaced_on_the_instance_is_not_stock(tmp_path: Path) -> None:
    save({"a": torch.ones(3)}, tmp_path)
    planner = DefaultLoadPlanner()
    seen: list[str] = []
    own = planner.resolve_tensor

    def resolve(read_item: Any) -> torch.Tensor:
        seen.append(read_item.dest_index.fqn)
        return own(read_item)

    planner.resolve_tensor = resolve  # type: ignore[method-assign]
    state = {"a": torch.zeros(3)}
    outcome = load_with(Reader(tmp_path), state, planner)
    assert outcome.error is None and seen == ["a"] and outcome.reader.staged == 1
    assert torch.equal(state["a"], torch.ones(3))


@pytest.mark.skipif(VERSION < (2, 7), reason="torch before 2.7 writes no transforms")
@pytest.mark.parametrize("layers", [1, 2])
def test_zstd_is_undone_natively(tmp_path: Path, layers: int) -> None:
    from torch.distributed.checkpoint._extension import ZStandard

    saved = {"a": torch.randn(300, 200), "b": torch.zeros(1000), "object": list(range(100)), "scalar": torch.tensor(3)}
    save(saved, tmp_path, _extensions=[ZStandard() for _ in range(layers)])

    def make() -> dict[str, Any]:
        return {"a": torch.zeros(300, 200), "b": torch.ones(1000), "object": None, "scalar": torch.tensor(0)}

    same(tmp_path, make)
    same(tmp_path, make, RecordingPlanner)


def save_async(rank: int, root: Path) -> None:
    warnings.simplefilter("ignore")
    in_world(rank, 1, root / "store")
    dcp.async_save({"a": torch.randn(5, 3), "n": 3}, checkpoint_id=root / "saved").result()
    leave()


def test_what_async_save_wrote(tmp_path: Path) -> None:
    torch.multiprocessing.spawn(save_async, (tmp_path,), nprocs=1)
    same(tmp_path / "saved", lambda: {"a": torch.zeros(5, 3), "n": 0})


def test_what_only_torch_understands_is_made_by_torch_and_counted(tmp_path: Path) -> None:
    quantized = torch.quantize_per_tensor(torch.randn(4, 5), 0.1, 3, torch.qint8)
    save({"quantized": quantized, "plain": torch.randn(4, 5)}, tmp_path)

    def make() -> dict[str, Any]:
        empty = torch.quantize_per_tensor(torch.zeros(4, 5), 0.1, 3, torch.qint8)
        return {"quantized": empty, "plain": torch.zeros(4, 5)}

    ours, torchs = load_with(Reader(tmp_path), make()), make()
    assert ours.error is None and ours.reader.fallbacks == 1
    assert load_with(FileSystemReader(tmp_path), torchs).error is None
    assert torch.equal(ours.state["quantized"].int_repr(), torchs["quantized"].int_repr())
    assert torch.equal(ours.state["plain"], torchs["plain"])


class Doubling(torch.Tensor):
    """A subclass whose copies are not plain."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = super().__torch_function__(func, types, args, kwargs or {})
        if func is torch.Tensor.copy_:
            torch.Tensor.mul_(args[0].as_subclass(torch.Tensor), 2)
        return result


def test_subclasses_do_their_own_copying(tmp_path: Path) -> None:
    save({"a": torch.arange(6.0)}, tmp_path)
    ours = same(tmp_path, lambda: {"a": torch.zeros(6).as_subclass(Doubling)}, fallbacks=1)
    assert torch.equal(ours.state["a"].as_subclass(torch.Tensor), torch.arange(6.0) * 2)


def test_inference_tensors_are_treated_as_by_torch(tmp_path: Path) -> None:
    save({"a": torch.arange(6.0)}, tmp_path)
    seen = []
    for reader in (FileSystemReader, Reader):
        with torch.inference_mode():
            target = torch.zeros(6)
        outcome = load_with(reader(tmp_path), {"a": target})
        seen.append((outcome.error is None, target.tolist()))
    assert seen[0] == seen[1] == (True, [0, 1, 2, 3, 4, 5])


@pytest.mark.parametrize("planner", [None, RecordingPlanner])
def test_a_default_device_changes_nothing(tmp_path: Path, planner: Any) -> None:
    save({"a": torch.arange(6.0), "b": torch.arange(6.0), "c": torch.arange(6.0), "n": 3}, tmp_path)
    cast = torch.zeros(6, dtype=torch.bfloat16)
    state = {"a": torch.zeros(6), "b": cast, "c": torch.zeros(6).as_subclass(Doubling), "n": 0}
    with torch.device("meta"):
        outcome = load_with(Reader(tmp_path), state, planner and planner())
    assert outcome.error is None, outcome.error
    assert state["a"].tolist() == cast.tolist() == [0, 1, 2, 3, 4, 5] and state["n"] == 3
    assert state["c"].tolist() == [0, 2, 4, 6, 8, 10]


def test_a_reader_can_be_used_again_and_reset_to_another_path(tmp_path: Path) -> None:
    save({"a": torch.ones(3)}, tmp_path / "one")
    save({"a": torch.full((3,), 2.0)}, tmp_path / "two")
    reader, state = Reader(tmp_path / "one"), {"a": torch.zeros(3)}
    for path, expected in (("one", 1.0), ("one", 1.0), ("two", 2.0)):
        reader.reset(tmp_path / path)
        assert load_with(reader, state).error is None
        assert state["a"].tolist() == [expected] * 3


def test_many_batches_through_little_memory(tmp_path: Path) -> None:
    saved = {f"t{index}": torch.randn(100, 10) for index in range(50)} | {"n": 3}
    save(saved, tmp_path)
    ours = same(
        tmp_path,
        lambda: {name: torch.zeros(100, 10) if name != "n" else 0 for name in saved},
        RecordingPlanner,
        memory_budget=10_000,
    )
    assert ours.reader.staged == 50


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("planner", [lambda: None, RecordingPlanner], ids=["stock", "own"])
def test_items_of_another_type_than_the_metadata_say(tmp_path: Path, dtype: torch.dtype, planner: Callable[[], Any]) -> None:
    # Large ones are stored in fewer bytes than the metadata say, small ones in more: there is more around them than in them.
    rows = [5, 5, 500, 5000]
    saved = {f"{kind}{number}": torch.randn(rows[number], 3) for kind in ("halved", "kept") for number in range(4)}
    dcp.save({**saved, "step": 3}, storage_writer=FileSystemWriter(tmp_path), planner=Halving())

    def targets() -> dict[str, Any]:
        return {name: torch.zeros_like(value, dtype=dtype) for name, value in saved.items()} | {"step": 0}

    same(tmp_path, targets, planner, fallbacks=None)
    reader, state = Reader(tmp_path, use_parallel=False), {"halved0": torch.zeros(5, 3), "kept0": torch.zeros(5, 3)}
    assert load_with(reader, state).error is None and reader.fallbacks == 1
    assert torch.equal(state["halved0"], saved["halved0"].half().float()) and torch.equal(state["kept0"], saved["kept0"])


def test_which_items_are_other_than_the_metadata_say_is_part_of_the_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved = {f"halved{number}": torch.randn(5, 3) for number in range(60)}
    dcp.save(saved, storage_writer=FileSystemWriter(tmp_path), planner=Halving())
    once_more, errors = _reader._once_more, []

    def with_more_failures_than_are_told(straight: Any, error: ShardfeedError) -> Any:
        errors.append(error)
        # As so many threads would meet them at once.
        error.args = ("60 things are wrong with the checkpoint:\n" + "\n".join([str(error).splitlines()[-1]] * 50) + "\nand 10 more",)
        return once_more(straight, error)

    monkeypatch.setattr(_reader, "_once_more", with_more_failures_than_are_told)
    reader, state = Reader(tmp_path, num_workers=1), {name: torch.zeros(5, 3) for name in saved}
    assert load_with(reader, state).error is None and reader.fallbacks == len(saved)
    assert all(torch.equal(state[name], saved[name].half().float()) for name in saved)
    (error,) = errors
    ((file, name, offset),) = error.other_than_described
    places = {index.fqn: info for index, info in reader.read_metadata().storage_data.items()}
    assert (file, offset) == (str(tmp_path / places[name].relative_path), places[name].offset)
    # Also on the way between ranks.
    assert pickle.loads(pickle.dumps(error)).other_than_described == error.other_than_described
    os.truncate(file, 100)
    failed = load_with(reader, state).error
    assert failed is not None and not any(hasattr(error, "other_than_described") for error, _ in failed.failures.values())


def test_a_shape_that_the_metadata_do_not_say_fails_as_it_does_with_torch(tmp_path: Path) -> None:
    class Longer(DefaultSavePlanner):
        def resolve_data(self, write_item: Any) -> Any:
            return torch.cat([super().resolve_data(write_item)] * 2)

    class Shorter(DefaultSavePlanner):
        def resolve_data(self, write_item: Any) -> Any:
            return super().resolve_data(write_item)[:2]

    for planner in (Longer, Shorter):
        dcp.save({"a": torch.randn(5)}, storage_writer=FileSystemWriter(tmp_path / planner.__name__), planner=planner())
    same(tmp_path / "Longer", lambda: {"a": torch.zeros(5)}, fallbacks=1)
    for kind in (FileSystemReader, Reader):
        error = load_with(kind(tmp_path / "Shorter"), {"a": torch.zeros(5)}).error
        assert "mismatch sizes" in str(error), kind
