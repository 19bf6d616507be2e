"""The part that is written in Rust. What users call is in the modules beside it."""

import sys
from collections.abc import Callable, Sequence
from os import PathLike
from typing import Any, final

__version__: str
__all__ = [
    "CHECKPOINT_DTYPES",
    "CheckpointRead",
    "CheckpointThreads",
    "Loader",
    "Numbers",
    "PickledCall",
    "PickledGlobal",
    "ShardfeedError",
    "Taken",
    "__version__",
    "checkpoint_memory_budget",
    "checkpoint_object_bytes_max",
    "checkpoint_read_workers",
    "checkpoint_workers",
    "checkpoint_workers_within_memory",
    "describe_checkpoint",
    "metadata_bytes",
    "read_checkpoint",
    "read_pickle",
]

class ShardfeedError(Exception):
    # Files, items and offsets, if all that is wrong is that these items hold another type or shape than the metadata say; not there otherwise.
    other_than_described: tuple[tuple[str, str, int], ...]

@final
class Numbers:
    def __len__(self) -> int: ...
    # Before, buffers have no name in Python.
    if sys.version_info >= (3, 12):
        def __buffer__(self, flags: int, /) -> memoryview: ...
    @property
    def is_at_home(self) -> bool: ...

@final
class Loader:
    def __new__(cls, settings: dict[str, Any], state: str | None) -> Loader: ...
    def next_batch(self, taken: Taken) -> dict[str, Any] | None: ...
    def put_back(self, taken: Taken) -> None: ...
    def state(self) -> str: ...
    def state_after(self, epoch: int, step: int) -> str: ...
    def load_state(self, state: str) -> None: ...
    def set_epoch(self, epoch: int) -> None: ...
    def begin_loop(self) -> None: ...
    def skip(self, start: int, stop: int) -> None: ...
    def pass_over(self, steps: int) -> None: ...
    def explain(self, step: int) -> dict[str, Any]: ...
    def stats(self) -> dict[str, Any]: ...
    @property
    def steps_per_epoch(self) -> int: ...
    @property
    def steps_left(self) -> int: ...
    @property
    def epoch(self) -> int: ...
    @property
    def is_at_home(self) -> bool: ...

CHECKPOINT_DTYPES: tuple[str, ...]

@final
class Taken:
    def __new__(cls) -> Taken: ...

@final
class PickledGlobal:
    @property
    def module(self) -> str: ...
    @property
    def name(self) -> str: ...

@final
class PickledCall:
    @property
    def callable(self) -> Any: ...
    @property
    def args(self) -> Any: ...
    @property
    def state(self) -> Any: ...

@final
class CheckpointRead:
    def wait(self, progress: Callable[[int, int, list[str]], object] | None = None) -> tuple[list[bytes], dict[str, int]]: ...
    def stop(self) -> None: ...

_Stored = tuple[int, int, int, Sequence[str]]  # file, offset, length, transforms
_Chunk = tuple[str, str, Sequence[int], Sequence[int], _Stored]  # name, dtype, offsets, sizes, where
_Part = tuple[int, Sequence[int], Sequence[int], int, Sequence[int]]  # chunk, offsets, sizes, address, strides in bytes
_Item = tuple[str, int, _Stored]  # name, bytes at most, where

@final
class CheckpointThreads:
    def __new__(
        cls,
        path: str | PathLike[str],
        files: Sequence[str],
        chunks: Sequence[_Chunk],
        *,
        num_workers: int,
        use_parallel: bool = True,
        verify: bool = False,
        follow_links: bool = False,
    ) -> CheckpointThreads: ...
    def start(self, parts: Sequence[_Part], keep: object) -> CheckpointRead: ...
    def stored_orders(self, chunks: Sequence[int]) -> list[list[int] | None]: ...
    def compare_rest(self) -> None: ...
    def close(self) -> None: ...

def read_pickle(bytes: bytes) -> Any: ...
def metadata_bytes(path: str | PathLike[str], rank: int | None = None, follow_links: bool = False) -> bytes: ...
def describe_checkpoint(path: str | PathLike[str], rank: int | None = None, follow_links: bool = False) -> dict[str, Any]: ...
def read_checkpoint(
    path: str | PathLike[str],
    files: Sequence[str],
    chunks: Sequence[_Chunk],
    parts: Sequence[_Part],
    items: Sequence[_Item],
    keep: object,
    *,
    use_parallel: bool = True,
    num_workers: int | None = None,
    verify: bool = False,
    memory_budget: int | None = None,
    follow_links: bool = False,
) -> CheckpointRead: ...
def checkpoint_memory_budget() -> int: ...
def checkpoint_object_bytes_max(stored: int) -> int: ...
def checkpoint_read_workers() -> int: ...
def checkpoint_workers(files: int, max_workers: int | None = None) -> int: ...
def checkpoint_workers_within_memory(file_bytes: int, max_workers: int | None = None) -> int: ...
