"""How many threads to read with."""

from __future__ import annotations

from typing import TypeVar

from shardfeed import _native

Number = TypeVar("Number", int, float)


def get_optimal_workers(num_files: int, max_workers: int | None = None) -> int:
    """Threads for so many files: as many as there are cores, and never more than there are files or than `max_workers`.

    >>> get_optimal_workers(1)
    1
    >>> get_optimal_workers(1000, max_workers=1)
    1
    """
    return _native.checkpoint_workers(_not_negative("num_files", num_files), _at_least_one(max_workers))


def get_memory_aware_workers(avg_file_size_mb: float, max_workers: int | None = None) -> int:
    """Threads that can each hold a file of this size within four fifths of the memory that is available, at most one for each core.

    What a control group leaves of the machine's memory is what counts. A reader takes care of this by itself, with what it
    holds at a time in place of files; this is for those who choose `num_workers`.

    >>> get_memory_aware_workers(10_000_000_000)
    1
    """
    file_bytes = int(_not_negative("avg_file_size_mb", avg_file_size_mb) * 1024 * 1024)
    return _native.checkpoint_workers_within_memory(min(file_bytes, 2**63), _at_least_one(max_workers))


def default_read_workers() -> int:
    """Threads of a read when nobody says how many: twice the cores, since some wait while others copy."""
    return _native.checkpoint_read_workers()


def _not_negative(name: str, value: Number) -> Number:
    if value < 0:
        raise ValueError(f"{name} is {value}, and cannot be less than 0")
    return value


def _at_least_one(max_workers: int | None) -> int | None:
    if max_workers is not None and max_workers < 1:
        raise ValueError(f"max_workers is {max_workers}, and nobody can work with less than 1")
    return max_workers
