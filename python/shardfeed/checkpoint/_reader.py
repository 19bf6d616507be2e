"""A drop-in for torch's `FileSystemReader`."""

from __future__ import annotations

import contextlib
import io
import os
import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
from torch.distributed._shard._utils import narrow_tensor_by_index
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystem, FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner
from torch.futures import Future

from shardfeed import _native
from shardfeed._native import ShardfeedError
from shardfeed.arguments import refuse_numbers_out_of
from shardfeed.checkpoint._archives import wrong_record
from shardfeed.checkpoint._devices import BUFFER_BYTES, LOOK_BYTES, CudaLane, read_through_ring, ring_of
from shardfeed.checkpoint._items import Wanted, wanted_in_order
from shardfeed.checkpoint._metadata import parse_metadata
from shardfeed.checkpoint._progress import Bar, TellProgress, Tracker
from shardfeed.checkpoint._sources import NativeSource, Pending, Source, StreamSource, naming_what_a_file_system_raises, place_of
from shardfeed.checkpoint._targets import Route, bump_versions, meets_any, route_of, staging_for

# A file, the name of an item in it, and where it begins there.
Place = tuple[str, str, int]

# What of a planner must be torch's own, so that it does not matter when and in which order it is asked.
_STOCK_METHODS = ("resolve_tensor", "commit_tensor", "lookup_tensor", "transform_tensor")

# Bytes that are held between the files and the tensors at a time, besides what is being read for the next time; less if the
# memory budget is small. An item that has more travels alone.
_STAGING_BYTES = 256 << 20


class Reader(FileSystemReader):
    """Reads a distributed checkpoint in parallel, with the results of torch's own `FileSystemReader`, bit for bit.

    Pass it wherever torch takes a `storage_reader`:

    >>> import torch.distributed.checkpoint as dcp
    >>> state, reader = {"model": model.state_dict()}, Reader("checkpoints/step-1000")
    >>> dcp.load(state, storage_reader=reader)
    >>> reader.fallbacks
    0

    `path`: the directory of the checkpoint. `_extension_registry`: as torch's own takes it, for transforms of your own.
    `use_parallel`: several threads; otherwise one item after another.
    `num_workers`: how many threads; chosen by cores, work and memory if nobody says.
    `verify`: compare the checksums that were stored with the items, and raise if anything differs. Torch never does.
    `memory_budget`: bytes that may be held besides the tensors; four fifths of what is available if nobody says. An item that has to be held
    as a whole is, and on the way to a GPU one pinned buffer of 8 MiB and twice as much beside it, however little it is.
    `progress`: called with a `Progress` now and then, on the thread that loads; `True` for a bar on the terminal.
    `follow_links`: read files that are links to somewhere else, as those of Hugging Face's cache are; otherwise they are refused.
    `fs`: a file system, an object with the methods of torch's `FileSystemBase`, to read through, in threads.

    Metadata are read by a parser that runs nothing. Bytes go straight into the tensors of the state dict where they can; with a
    planner that is not torch's own, or overrides how tensors are found or committed, items are read ahead and handed over one by
    one in torch's order. What only torch can make sense of (quantized types, tensor subclasses, transforms that are not zstd, items that
    a planner saved in another type than the metadata say) is read by us and made by torch; `fallbacks` counts those tensors.

    A load that fails raises, and names the files, items and offsets that failed until it was ended; tensors may be filled in part then.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        _extension_registry: Any = None,
        *,
        use_parallel: bool = True,
        num_workers: int | None = None,
        verify: bool = False,
        memory_budget: int | None = None,
        progress: TellProgress | bool | None = None,
        follow_links: bool = False,
        fs: Any = None,
    ) -> None:
        refuse_numbers_out_of(1, 2**32, num_workers=num_workers)
        refuse_numbers_out_of(1, 2**64, memory_budget=memory_budget)
        # Torch before 2.7 takes none.
        super().__init__(path, *([] if _extension_registry is None else [_extension_registry]))
        if fs is not None:
            self.fs = fs
            self.path = fs.init_path(path) if hasattr(fs, "init_path") else path
        self.use_parallel = use_parallel
        self.num_workers = num_workers
        self.verify = verify
        self.memory_budget = memory_budget
        self.progress = progress
        self.follow_links = follow_links
        # Tensors of the last load that torch made from an item's bytes, since native code could not.
        self.fallbacks = 0
        # Tensors of the last load that went through memory in between.
        self.staged = 0
        self._state_dict_metadata: dict[str, Any] = {}
        # Why metadata could not be read.
        self._refused: Exception | None = None

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """What the checkpoint says of itself; with `rank=`, what that rank says, of one that was saved without collectives."""
        rank = kwargs.get("rank")
        try:
            with _for_all_ranks():
                metadata = self._parsed(rank)
        except Exception as error:
            # Whatever is wrong with the metadata of all ranks, torch asks for those of one next: the first is what is wrong.
            self._refused = self._refused or error
            raise
        self._refused = None
        if metadata.storage_meta is None:
            metadata.storage_meta = StorageMeta()
        metadata.storage_meta.load_id = self.load_id
        return metadata

    def _parsed(self, rank: int | None) -> Metadata:
        path = self.fs.concat_path(self.path, ".metadata" if rank is None else f"__{rank}.metadata")
        if type(self.fs) is FileSystem:
            # With the same care for links and pipes as everything else.
            try:
                pickled = _native.metadata_bytes(self.path, rank, self.follow_links)
            except FileNotFoundError as error:
                advice = "give the directory that torch.distributed.checkpoint saved to, or save or copy it again if it did not end"
                if any(Path(self.path).glob("*.safetensors")):
                    advice = (
                        "there are safetensors files, which this does not load: `shardfeed ckpt` and Shardfeed's Rust library read them, and so does "
                        "the package safetensors"
                    )
                raise FileNotFoundError(error.errno, f"no checkpoint is there; {advice}", str(path)) from None
        else:
            with naming_what_a_file_system_raises(str(path)), self.fs.create_stream(path, "rb") as stream:
                pickled = stream.read()
        try:
            return parse_metadata(pickled)
        except ShardfeedError as error:
            raise ShardfeedError(f"{path}: {error}") from error

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Takes what the checkpoint says of itself, from `read_metadata` or made elsewhere."""
        super().set_up_storage_reader(metadata, is_coordinator, *args, **kwargs)
        self._state_dict_metadata = metadata.state_dict_metadata

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Forgets the last load; another path may be given for the next one."""
        super().reset(checkpoint_id)
        self._state_dict_metadata, self._refused = {}, None

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Reads everything that a plan asks for. The future is complete when it is returned."""
        with _for_all_ranks():
            return self._read(plan, planner, self.use_parallel, self.num_workers)

    def read_data_parallel(self, plan: LoadPlan, planner: LoadPlanner, num_workers: int | None = None) -> Future[None]:
        """The same on several threads, whatever the reader was told when it was made."""
        refuse_numbers_out_of(1, 2**32, num_workers=num_workers)
        with _for_all_ranks():
            return self._read(plan, planner, True, num_workers or self.num_workers)

    def _read(self, plan: LoadPlan, planner: LoadPlanner, use_parallel: bool, num_workers: int | None) -> Future[None]:
        self.fallbacks, self.staged = 0, 0
        wanted = wanted_in_order(plan.items, self.storage_data, self._state_dict_metadata)
        tell = Bar() if self.progress is True else self.progress or None
        tracker = Tracker(tell, sum(item.bytes for item in wanted), (item.name for item in wanted))
        source = self._source(use_parallel, num_workers)
        if source.fills_tensors and _is_stock(planner):
            self._read_at_once(wanted, planner, source, tracker, use_parallel, num_workers)
        else:
            self._read_in_order([Entry(item) for item in wanted], planner, source, tracker)
        tracker.complete()
        future: Future[None] = Future()
        future.set_result(None)
        return future

    def _source(self, use_parallel: bool, num_workers: int | None) -> Source:
        # Subclasses and users may have replaced it after the reader was made.
        if type(self.fs) is not FileSystem:
            return StreamSource(self.fs, self.path, num_workers if use_parallel else 1)
        return NativeSource(
            self.path,
            use_parallel=use_parallel,
            num_workers=num_workers,
            verify=self.verify,
            memory_budget=self.memory_budget,
            follow_links=self.follow_links,
        )

    def _read_at_once(
        self,
        wanted: list[Wanted],
        planner: LoadPlanner,
        source: Source,
        tracker: Tracker,
        use_parallel: bool,
        num_workers: int | None,
    ) -> None:
        """All targets are found first; what can go straight into them does, and the rest follows in order."""
        # Straight to memory, or to a device.
        straight: list[tuple[Wanted, torch.Tensor, Route]] = []
        rest: list[Entry] = []
        order: list[Entry | None] = []
        for item in wanted:
            if item.is_object:
                rest.append(Entry(item))
                order.append(rest[-1])
                continue
            target = planner.resolve_tensor(item.item).detach()
            part = None if source.remaining_transforms(item) else item.part
            if part is not None and target.size() != part.sizes:
                raise _mismatch(item, target.size(), torch.Size(part.sizes))
            route = route_of(target, part)
            if route is Route.PINNED and (item.transforms or not use_parallel and item.info.length > BUFFER_BYTES):
                # It would be decompressed or read as a whole for each of its pieces.
                route = Route.STAGED
            if route in (Route.DIRECT, Route.PINNED):
                straight.append((item, target, route))
                order.append(None)
            else:
                rest.append(Entry(item, target, by_torch=route is Route.TORCH))
                order.append(rest[-1])
        others = [entry.target for entry in rest if entry.target is not None]
        if others and straight:
            # Where memory is shared between what goes straight and what does not, all of it keeps torch's order.
            meets = iter(zip(straight, meets_any([target for _, target, _ in straight], others)))
            straight, rest = [], []
            for entry in order:
                if entry is not None:
                    rest.append(entry)
                    continue
                (item, target, route), is_met = next(meets)
                if is_met:
                    rest.append(Entry(item, target))
                else:
                    straight.append((item, target, route))
        direct = [(item, target) for item, target, route in straight if route is Route.DIRECT]
        if direct:
            try:
                source.start(direct).wait(tracker.native(is_final=True))
                tracker.finish(sum(item.bytes for item, _ in direct), [item.name for item, _ in direct])
            except ShardfeedError as error:
                rest += _once_more(direct, error)
            finally:
                # Also if it failed: some were written to by then.
                bump_versions([target for _, target in direct])
        pinned: dict[torch.device, list[tuple[Wanted, torch.Tensor]]] = {}
        for item, target, route in straight:
            if route is Route.PINNED:
                pinned.setdefault(target.device, []).append((item, target))
        for device, pieces in pinned.items():
            try:
                self._read_to_device(device, pieces, source, tracker, num_workers if use_parallel else 1)
            except ShardfeedError as error:
                rest += _once_more(pieces, error)
        self._read_in_order(rest, planner, source, tracker)

    def _read_to_device(
        self,
        device: torch.device,
        pieces: list[tuple[Wanted, torch.Tensor]],
        source: Source,
        tracker: Tracker,
        num_workers: int | None,
    ) -> None:
        """Through pinned memory, which is filled and emptied at the same time."""
        assert isinstance(source, NativeSource), "only native threads fill memory"
        ring = ring_of(sum(item.bytes for item, _ in pieces), num_workers, self.memory_budget, BUFFER_BYTES)
        with contextlib.closing(source.threads((wanted for wanted, _ in pieces), ring.threads)) as threads:
            looked_at = iter(threads.looked_at([wanted for wanted, _ in pieces if wanted.bytes >= LOOK_BYTES]))
            ordered = [(next(looked_at) if wanted.bytes >= LOOK_BYTES else wanted, target) for wanted, target in pieces]
            read_through_ring(ordered, CudaLane(device), threads.start, tracker.finish, ring=ring, buffer_bytes=BUFFER_BYTES)
            threads.compare_rest()

    def _read_in_order(self, entries: list[Entry], planner: LoadPlanner, source: Source, tracker: Tracker) -> None:
        """Items are read ahead, some at a time, and handed over one by one. One lot is read at a time: it has all threads that there may be."""
        read: tuple[list[Entry], list[bytes]] | None = None
        for batch in _batches(entries, _STAGING_BYTES if self.memory_budget is None else min(_STAGING_BYTES, self.memory_budget // 2)):
            pending = source.start([(entry.wanted, entry.stage(source)) for entry in batch])
            try:
                if read is not None:
                    self._hand_over(*read, planner, source, tracker)
                read = batch, self._read_batch(batch, pending, source, tracker)
            finally:
                pending.stop()
        if read is not None:
            self._hand_over(*read, planner, source, tracker)

    def _hand_over(self, batch: list[Entry], read: list[bytes], planner: LoadPlanner, source: Source, tracker: Tracker) -> None:
        objects = iter(read)
        for entry in batch:
            item = entry.wanted.item
            if entry.staging is None:
                data = self._decoded(entry.wanted, next(objects), source)
                if entry.wanted.is_object:
                    with self._naming(entry.wanted, "it cannot be loaded"):
                        planner.load_bytes(item, io.BytesIO(data))
                    continue
                tensor = self._made_by_torch(entry.wanted, data)
                self.fallbacks += 1
            else:
                tensor = entry.staging
                self.staged += 1
            target = entry.target if entry.target is not None else planner.resolve_tensor(item).detach()
            if target.size() != tensor.size():
                raise _mismatch(entry.wanted, target.size(), tensor.size())
            target.copy_(tensor)
            planner.commit_tensor(item, target)
            entry.staging = None
        tracker.finish(sum(entry.wanted.bytes for entry in batch), [entry.wanted.name for entry in batch])

    def _read_batch(self, batch: list[Entry], pending: Pending, source: Source, tracker: Tracker) -> list[bytes]:
        """Waits for what was begun. What native code finds to be other than the metadata say is torch's to make sense of."""
        # The first time those that are named; a read ends early when it fails, so that the second time it is all of them.
        for is_named in (True, False):
            try:
                return pending.wait(tracker.native(is_final=False))
            except ShardfeedError as error:
                others = _other_than_described(error)
                if not others:
                    raise
                for entry in batch:
                    if not is_named or self._place(entry.wanted) in others:
                        entry.by_torch, entry.staging = True, None
                pending = source.start([(entry.wanted, entry.stage(source)) for entry in batch])
        return pending.wait(tracker.native(is_final=False))

    def _place(self, wanted: Wanted) -> Place:
        info = wanted.info
        return str(self.fs.concat_path(self.path, info.relative_path)), wanted.name, info.offset

    def _decoded(self, wanted: Wanted, stored: bytes, source: Source) -> bytes:
        """An item's bytes with transforms undone that only torch's extension registry knows."""
        transforms = source.remaining_transforms(wanted)
        if transforms:
            stored = self._undone(wanted, stored, transforms)
        if self.verify and (transforms or not source.fills_tensors):
            # Native code has not seen the archive.
            with self._naming(wanted, "its checksums cannot be compared"):
                wrong = wrong_record(stored)
            if wrong is not None:
                raise ShardfeedError(f"{place_of(self.fs, self.path, wanted)}: {wrong}: it is damaged; copy the file again")
        return stored

    def _undone(self, wanted: Wanted, stored: bytes, transforms: list[str]) -> bytes:
        place = place_of(self.fs, self.path, wanted)
        registry = getattr(self, "transforms", None)
        if registry is None:
            raise ValueError(f"{place}: it was changed by {transforms}, which torch {torch.__version__} cannot undo")
        try:
            with self._naming(wanted, f"the transforms {transforms} cannot be undone"):
                return cast(bytes, registry.transform_load_stream(wanted.item, transforms, io.BytesIO(stored)).read(-1))
        except ShardfeedError as error:
            if isinstance(error.__cause__, ValueError):
                # What torch says of transforms that it does not know.
                raise ValueError(str(error)) from error.__cause__
            raise

    def _made_by_torch(self, wanted: Wanted, data: bytes) -> torch.Tensor:
        with self._naming(wanted, "torch cannot make a tensor of it"):
            tensor = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
            return narrow_tensor_by_index(tensor, wanted.item.storage_offsets, wanted.item.lengths)

    @contextlib.contextmanager
    def _naming(self, wanted: Wanted, what: str) -> Iterator[None]:
        """What goes wrong is told with the item that it happened to: whoever raises it knows bytes only."""
        try:
            yield
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            raise ShardfeedError(f"{place_of(self.fs, self.path, wanted)}: {what}: {reason}") from error


@dataclass
class Entry:
    """An item that is handed over in its turn: where it goes, if that is known already, and the memory in between, if there is any."""

    wanted: Wanted
    target: torch.Tensor | None = None
    by_torch: bool = False
    staging: torch.Tensor | None = None

    def stage(self, source: Source) -> torch.Tensor | None:
        part = self.wanted.part
        if part is not None and source.fills_tensors and not self.by_torch and not source.remaining_transforms(self.wanted):
            self.staging = staging_for(part)
        return self.staging


@contextlib.contextmanager
def _for_all_ranks() -> Iterator[None]:
    """Torch sends what a rank raises to the others, as a pickle, and they wait for it for ever if it cannot be pickled."""
    try:
        yield
    except Exception as error:
        if not (dist.is_available() and dist.is_initialized()):
            raise
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:
            raise ShardfeedError(f"{type(error).__name__}: {error}") from error
        raise


def _once_more(straight: list[tuple[Wanted, torch.Tensor]], error: ShardfeedError) -> list[Entry]:
    """What went straight to where it belongs is read through memory in between if some of it is other than the metadata say."""
    if not _other_than_described(error):
        raise error
    return [Entry(item, target) for item, target in straight]


def _other_than_described(error: ShardfeedError) -> tuple[Place, ...]:
    """Which items hold another type or shape than the metadata say, as a planner that converts them saves them, if that is all that is wrong.
    Torch never compares the two.
    """
    return getattr(error, "other_than_described", ())


def _is_stock(planner: LoadPlanner) -> bool:
    kind = type(planner)
    return isinstance(planner, DefaultLoadPlanner) and all(
        getattr(kind, name) is getattr(DefaultLoadPlanner, name) and name not in vars(planner) for name in _STOCK_METHODS
    )


def _batches(entries: Sequence[Entry], bytes_max: int) -> list[list[Entry]]:
    batches: list[list[Entry]] = []
    left = 0
    for entry in entries:
        size = max(entry.wanted.bytes, entry.wanted.info.length)
        if not batches or size > left:
            batches.append([])
            left = bytes_max
        batches[-1].append(entry)
        left -= size
    return batches


def _mismatch(wanted: Wanted, target: torch.Size, stored: torch.Size) -> AssertionError:
    return AssertionError(f"req {wanted.item.storage_index} mismatch sizes {target} vs {stored}")


# Where people import it from, and where pickles look for it.
Reader.__module__ = "shardfeed.checkpoint"
