"""The token stream."""

import json
import os
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any, Literal, NoReturn

from shardfeed import _native
from shardfeed.arguments import (
    refuse_none,
    refuse_numbers_out_of,
    refuse_other_than_bools,
    refuse_other_than_callables,
    refuse_other_than_words,
)
from shardfeed.arrays import MakeArray, array_maker
from shardfeed.batch import Batch
from shardfeed.rank import find_rank, refuse_ranks_that_came_later

Source = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]

#: As they lie in a batch's buffer, after the ids.
ARRAYS = ("labels", "position_ids", "document_ids")


class TokenLoader:
    """Streams pre-tokenized Parquet to one rank, in batches of tensors.

    An epoch is a pure function of the data, the settings and the seed: step `s` is the same set of `global_batch` sequences at every world
    size, and `state_dict()`, the same on every rank, resumes it at any other.

    >>> loader = TokenLoader(data, seq_len=128, global_batch=8, seed=7)
    >>> for batch in loader:
    ...     pass
    >>> batch["input_ids"].shape
    torch.Size([8, 128])

    Args:
        source: A directory (every `*.parquet` in it), a glob, or a list of files, with a column `input_ids` or `token_ids`.
        seq_len: Tokens of a sequence.
        global_batch: Sequences of a step, over all ranks.
        seed: Another seed, another order. 0 by default.
        shuffle: Off: file order, for looking at data. On by default.
        packing: "concat" (default) joins rows and cuts them; "pad" pads each row, and one that is longer takes several sequences.
        tail: What happens to a last step that is not full: "pad" (default), "drop", "wrap" or "error".
        labels: "shifted" (default), or "unshifted" for models that shift themselves, as those of Hugging Face do.
        eos_id: The id that ends each document: an input and a label where rows are joined, a label alone where they are padded. None by default.
        pad_id: The token where there is none.
        rank: This process's place among those that get different data; together with `world_size`. By default of `mesh`, else of the
            variables `RANK` and `WORLD_SIZE`, else of torch.distributed. Ranks that must see the same data pass the same.
        world_size: How many get different data.
        mesh: A `DeviceMesh` of the data-parallel dimensions, instead of `rank` and `world_size`.
        dtype: "int64" or "int32".
        threads: Threads that decode; the machine's cores, at most 8, by default.
        memory_budget: Bytes to stay within, 8 GiB by default.
        arrays: What batches hold besides `input_ids`: some of "labels", "position_ids", "document_ids", "cu_seqlens". All but the last by
            default; each costs as much as the ids themselves.
        lanes: Places of the epoch that are read at once. By itself if not given.
        window: Sequences among which a lane shuffles. By itself if not given.
        on_corrupt: "error" (default), or "mask" to pad over damaged row groups.
        cache: Where the manifest is kept: "auto" (default), "off", or a file.
        coordinator: A URL that is told how this rank does. It has to answer when the loader is made; the stream never waits for it.
            `etcd://host:2379/job` needs a package that was built with the cargo feature `etcd`
            (`pip install . -C build-args="--features etcd"`, with protoc installed).
        progress: Called while the data set is scanned, with work done and to do.
        output: "torch" or "numpy"; torch where it is installed, by default.
        pin_memory: Batches lie in pinned memory, which takes a GPU.
    """

    def __init__(
        self,
        source: Source,
        *,
        seq_len: int,
        global_batch: int,
        seed: int | None = None,
        shuffle: bool | None = None,
        packing: Literal["concat", "pad"] | None = None,
        tail: Literal["pad", "drop", "wrap", "error"] = "pad",
        labels: Literal["shifted", "unshifted"] = "shifted",
        eos_id: int | None = None,
        pad_id: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
        mesh: Any = None,
        dtype: Literal["int64", "int32"] = "int64",
        threads: int | None = None,
        memory_budget: int | None = None,
        arrays: Sequence[str] = ARRAYS,
        lanes: int | None = None,
        window: int | None = None,
        on_corrupt: Literal["error", "mask"] = "error",
        cache: str | os.PathLike[str] | None = None,
        coordinator: str | None = None,
        progress: Callable[[int, int], object] | None = None,
        output: Literal["torch", "numpy"] | None = None,
        pin_memory: bool = False,
    ) -> None:
        refuse_none(source=source, seq_len=seq_len, global_batch=global_batch, pad_id=pad_id, tail=tail, labels=labels, dtype=dtype)
        refuse_numbers_out_of(1, 2**32, seq_len=seq_len, global_batch=global_batch)
        refuse_numbers_out_of(0, 2**64, seed=seed)
        refuse_numbers_out_of(0, 2**32, rank=rank, eos_id=eos_id, pad_id=pad_id)
        refuse_numbers_out_of(1, 2**32, world_size=world_size, threads=threads, lanes=lanes, window=window)
        refuse_numbers_out_of(1, 2**64, memory_budget=memory_budget)
        refuse_other_than_bools(shuffle=shuffle, pin_memory=pin_memory)
        refuse_other_than_words(packing=packing, tail=tail, labels=labels, dtype=dtype, on_corrupt=on_corrupt, coordinator=coordinator)
        refuse_other_than_callables(progress=progress)
        found = find_rank(rank, world_size, mesh)
        # Whether nobody said which rank this is.
        self._is_alone = found is None
        rank, world_size = found or (0, 1)
        self._settings: dict[str, Any] = {
            "source": _paths(source),
            "seq_len": seq_len,
            "global_batch": global_batch,
            "seed": seed,
            "shuffle": None if shuffle is None else bool(shuffle),
            "packing": packing,
            "tail": tail,
            "labels": labels,
            "eos_id": eos_id,
            "pad_id": pad_id,
            "rank": rank,
            "world_size": world_size,
            "dtype": dtype,
            "threads": threads,
            "memory_budget": memory_budget,
            "arrays": list(arrays),
            "lanes": lanes,
            "window": window,
            "on_corrupt": on_corrupt,
            "cache": None if cache is None else os.fspath(cache),
            "epoch": None,
            "every": 1,
            "coordinator": coordinator,
            "progress": progress,
        }
        if output not in (None, "torch", "numpy"):
            raise ValueError(f'unknown output {output!r}; it is "torch" or "numpy"')
        self._output: tuple[Literal["torch", "numpy"] | None, bool] = (output, pin_memory)
        self._make: MakeArray | None = None
        # Where a loader that is yet to be made will stand.
        self._state: str | None = None
        self._loader: _native.Loader | None = _native.Loader(self._settings, None)

    def _native_loader(self) -> _native.Loader:
        """The loader of this process: a child that was forked makes one of its own, which stands where its parent's stood."""
        if self._loader is None or not self._loader.is_at_home:
            self._loader = _native.Loader(self._settings, self._saved())
        return self._loader

    def _saved(self) -> str | None:
        return self._state if self._loader is None else self._loader.state()

    @cached_property
    def _names(self) -> tuple[str, ...]:
        """The arrays in a batch's buffer, in their order."""
        return ("input_ids", *(name for name in ARRAYS if name in self._settings["arrays"]))

    def _take_turns(self, turn: int, every: int) -> None:
        """From here on one step of every so many is handed out: others hand out those in between."""
        self._state, self._loader = self._saved(), None
        # One of them tells the coordinator how this rank does.
        coordinator = self._settings["coordinator"] if turn == 0 else None
        self._settings = {**self._settings, "every": every, "coordinator": coordinator}

    def __iter__(self) -> Iterator[Batch]:
        """The batches of one epoch, from where the stream stands: after a loop that was left at an epoch's last step, the next epoch."""
        self._refuse_ranks_that_came_later()
        self._native_loader().begin_loop()
        while (batch := self._next()) is not None:
            yield batch

    def _refuse_ranks_that_came_later(self) -> None:
        if self._is_alone:
            refuse_ranks_that_came_later()

    def _next(self) -> Batch | None:
        if self._make is None:
            kind, pin_memory = self._output
            self._make = array_maker(kind, pin_memory=pin_memory)
        loader, taken = self._native_loader(), _native.Taken()
        try:
            made = loader.next_batch(taken)
            return None if made is None else self._batch(made)
        except BaseException:
            # Ctrl-C may come when the batch was taken already, and there may be no memory left to pin: it is handed out again.
            loader.put_back(taken)
            raise

    def _batch(self, made: dict[str, Any]) -> Batch:
        assert self._make is not None
        dtype, shape = self._settings["dtype"], (made["rows"], self._settings["seq_len"])
        batch = Batch()
        batch.step, batch.epoch = made["step"], made["epoch"]
        batch.tokens, batch.valid_labels = made["tokens"], made["valid_labels"]
        for index, name in enumerate(self._names):
            batch[name] = self._make(made["ids"], dtype, shape, index)
        if "cu_seqlens" in made:
            batch["cu_seqlens"] = self._make(made["cu_seqlens"], "int32", (len(made["cu_seqlens"]) // 4,), 0)
        return batch

    def __getitem__(self, index: object) -> NoReturn:
        """Torch's DataLoader takes what is no `IterableDataset` for a list, and asks for items by number."""
        raise TypeError(
            "batches of a TokenLoader come in their order, not by number; in a DataLoader, use shardfeed.torch.TokenDataset, with the same "
            "arguments, and batch_size=None"
        )

    def __len__(self) -> int:
        """Steps of an epoch, from its start: the same on every rank and in every epoch, those that `skip` leaves out counted too. See
        `steps_left` for how many are still to come.
        """
        return self._native_loader().steps_per_epoch

    @property
    def steps_left(self) -> int:
        """Steps from here to the epoch's end."""
        return self._native_loader().steps_left

    @property
    def epoch(self) -> int:
        """The epoch that the stream is in."""
        return self._native_loader().epoch

    @property
    def rank(self) -> int:
        """The rank whose batches these are."""
        return int(self._settings["rank"])

    @property
    def world_size(self) -> int:
        """Ranks that get different data."""
        return int(self._settings["world_size"])

    def set_epoch(self, epoch: int) -> None:
        """Goes to the start of an epoch; within the current one the position stays, since trainers call this after a resume."""
        refuse_numbers_out_of(0, 2**64, epoch=epoch)
        self._native_loader().set_epoch(epoch)

    def state_dict(self, *, after: Batch | None = None) -> dict[str, Any]:
        """Where the stream stands: plain values, under 1 KiB, the same on every rank. Counts what was handed out, not what was prepared.

        With `after`, where it stands once that batch was handed out, also if the epoch is over: after its last batch, the start of the next.
        """
        if after is not None and not isinstance(after, Batch):
            raise TypeError(
                f"after is of type {type(after).__name__}; give a batch as the loader handed it out: what is made of its tensors knows no step"
            )
        loader = self._native_loader()
        text = loader.state() if after is None else loader.state_after(after.epoch, after.step)
        state: dict[str, Any] = json.loads(text)
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues where a state stands, before or while iterating. Refuses the state of other data, or of other settings."""
        if not isinstance(state, dict) or "shardfeed_state" not in state:
            raise TypeError(f"{_shortened(state)} is no state of a TokenLoader; give what its state_dict() returned, a dictionary with 'shardfeed_state'")
        try:
            text = json.dumps(state)
        except TypeError as error:
            raise TypeError(f"the state has other than plain values ({error}); give what state_dict() returned") from None
        self._native_loader().load_state(text)

    def skip(self, start: int, stop: int) -> None:
        """Leaves steps `start` to `stop - 1` of this epoch out, for example after a loss spike. Call it alike on every rank; it is part of
        the state. Those that were handed out stay so, and the range may reach past the epoch's end.
        """
        refuse_numbers_out_of(0, 2**64, start=start, stop=stop)
        if stop <= start:
            raise ValueError(f"stop is {stop} and start is {start}; steps from start to stop - 1 are left out, so that stop is larger")
        self._native_loader().skip(start, stop)

    def explain(self, step: int) -> dict[str, Any]:
        """The files, row groups, rows and tokens of a step of this epoch, of all ranks. Which rows of a damaged row group they are nobody can
        tell: that is an error that names it, also where it is masked.
        """
        refuse_numbers_out_of(0, 2**64, step=step)
        return self._native_loader().explain(step)

    def stats(self) -> dict[str, Any]:
        """What the loader did so far: tokens per second, how long the trainer waited, bytes read, and more."""
        return self._native_loader().stats()

    def __getstate__(self) -> dict[str, Any]:
        """For processes that are spawned: what it was given, and where it stands."""
        settings = {**self._settings, "progress": None}
        return {"settings": settings, "output": self._output, "state": self._saved(), "is_alone": self._is_alone}

    def __setstate__(self, saved: dict[str, Any]) -> None:
        self._settings, self._output, self._make = saved["settings"], saved["output"], None
        self._is_alone = saved["is_alone"]
        # Made when it is asked for: a process may only pass it on.
        self._state, self._loader = saved["state"], None

    def __repr__(self) -> str:
        given = {name: value for name, value in self._settings.items() if value is not None}
        given.pop("coordinator", None)  # It may hold a password.
        return f"TokenLoader({given})"


def _shortened(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 100 else text[:100] + "…"


def _paths(source: Source) -> str | list[str]:
    if isinstance(source, (str, os.PathLike)):
        return os.fspath(source)
    return [os.fspath(path) for path in source]
