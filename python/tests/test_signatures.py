"""What people call takes what was promised: names, which of them are keywords alone, and what they are if nobody says."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from shardfeed import ShardfeedError, TokenLoader, checkpoint
from shardfeed.checkpoint import Reader, get_memory_aware_workers, get_optimal_workers
from shardfeed.torch import TokenDataset

#: An argument that has to be given.
REQUIRED = inspect.Parameter.empty

POSITIONAL = inspect.Parameter.POSITIONAL_OR_KEYWORD
KEYWORD = inspect.Parameter.KEYWORD_ONLY

SETTINGS: dict[str, Any] = {"seq_len": 32, "global_batch": 8}

# None where it is as a state says that is loaded, and else what `IF_NOBODY_SAYS` tells.
OF_A_STREAM: dict[str, Any] = {
    "seq_len": REQUIRED,
    "global_batch": REQUIRED,
    "seed": None,
    "shuffle": None,
    "packing": None,
    "tail": "pad",
    "labels": "shifted",
    "eos_id": None,
    "pad_id": 0,
    "rank": None,
    "world_size": None,
    "dtype": "int64",
    "threads": None,
    "memory_budget": None,
    "coordinator": None,
}
IF_NOBODY_SAYS: dict[str, Any] = {"seed": 0, "shuffle": True, "packing": "concat"}
OTHERS: dict[str, Any] = {"seed": 9, "shuffle": False, "packing": "pad"}

OF_A_READER: dict[str, Any] = {
    "use_parallel": True,
    "num_workers": None,
    "verify": False,
    "memory_budget": None,
    "progress": None,
    "fs": None,
}

# What may be given by place, in order, and the keywords. A method's `self` is among the former.
PROMISED: list[tuple[Callable[..., Any], dict[str, Any], dict[str, Any]]] = [
    (TokenLoader, {"source": REQUIRED}, OF_A_STREAM),
    (TokenDataset, {"source": REQUIRED}, OF_A_STREAM),
    (Reader, {"path": REQUIRED}, OF_A_READER),
    (checkpoint.load, {"state_dict": REQUIRED, "path": REQUIRED}, OF_A_READER),
    (Reader.read_data, {"self": REQUIRED, "plan": REQUIRED, "planner": REQUIRED}, {}),
    (Reader.read_data_parallel, {"self": REQUIRED, "plan": REQUIRED, "planner": REQUIRED, "num_workers": None}, {}),
    (checkpoint.inspect, {"path": REQUIRED}, {}),
    (get_optimal_workers, {"num_files": REQUIRED, "max_workers": None}, {}),
    (get_memory_aware_workers, {"avg_file_size_mb": REQUIRED, "max_workers": None}, {}),
    (TokenLoader.__len__, {"self": REQUIRED}, {}),
    (TokenLoader.set_epoch, {"self": REQUIRED, "epoch": REQUIRED}, {}),
    (TokenLoader.state_dict, {"self": REQUIRED}, {}),
    (TokenLoader.load_state_dict, {"self": REQUIRED, "state": REQUIRED}, {}),
    (TokenLoader.stats, {"self": REQUIRED}, {}),
    (TokenLoader.explain, {"self": REQUIRED, "step": REQUIRED}, {}),
]


@pytest.mark.parametrize(("called", "places", "keywords"), PROMISED, ids=[called.__qualname__ for called, _, _ in PROMISED])
def test_arguments_are_those_that_were_promised(called: Callable[..., Any], places: dict[str, Any], keywords: dict[str, Any]) -> None:
    found = inspect.signature(called).parameters
    # Torch's own registry stands second in its reader, and so in ours, which takes that reader's place.
    by_place = {name: found[name].default for name in found if found[name].kind is POSITIONAL and name != "_extension_registry"}
    by_keyword = {name: found[name].default for name in found if found[name].kind is KEYWORD}
    assert list(by_place.items()) == list(places.items())
    # There may be more keywords, as long as nobody has to give them.
    assert by_keyword.items() >= keywords.items()
    assert all(default is not REQUIRED for name, default in by_keyword.items() if name not in keywords)
    assert {found[name].kind for name in found} <= {POSITIONAL, KEYWORD}
    # As the same values: 0 would be equal to False.
    assert all(type(by_keyword[name]) is type(default) for name, default in keywords.items())


def test_a_data_set_and_a_load_take_what_a_loader_and_a_reader_take() -> None:
    def keywords(called: Callable[..., Any]) -> dict[str, Any]:
        return {name: found.default for name, found in inspect.signature(called).parameters.items() if found.kind is KEYWORD}

    assert inspect.signature(TokenDataset).parameters == inspect.signature(TokenLoader).parameters
    assert keywords(checkpoint.load) == {"planner": None, **keywords(Reader)}


def test_a_data_set_does_with_its_arguments_what_a_loader_does(data: str) -> None:
    given: dict[str, Any] = {**SETTINGS, **OTHERS, "labels": "unshifted", "pad_id": 1, "dtype": "int32", "rank": 1, "world_size": 3}
    ours, loaders = TokenDataset(data, **given), TokenLoader(data, **given)
    for one, other in zip(ours, loaders, strict=True):
        assert set(one) == set(other) and all(torch.equal(one[name], other[name]) for name in other)
    kinds: list[Callable[..., object]] = [TokenDataset, TokenLoader]
    for kind in kinds:
        with pytest.raises(TypeError, match="shufle"):
            kind(data, **SETTINGS, shufle=True)
        with pytest.raises(TypeError, match="positional"):
            kind(data, 32, 8)


def test_workers_are_counted_by_keyword_and_by_place() -> None:
    assert get_optimal_workers(num_files=1000, max_workers=1) == get_optimal_workers(1000, 1) == 1
    assert get_optimal_workers(num_files=1, max_workers=None) == get_optimal_workers(num_files=1) == 1
    assert get_memory_aware_workers(avg_file_size_mb=1, max_workers=1) == get_memory_aware_workers(1, 1) == 1
    assert get_memory_aware_workers(avg_file_size_mb=1e12, max_workers=None) == get_memory_aware_workers(avg_file_size_mb=1e12) == 1


def ids(loader: TokenLoader) -> list[list[list[int]]]:
    return [batch["input_ids"].tolist() for batch in loader]


def test_what_nobody_says_is_as_promised(data: str) -> None:
    unset = ids(TokenLoader(data, **SETTINGS))
    assert ids(TokenLoader(data, **SETTINGS, **IF_NOBODY_SAYS)) == unset
    for name, other in OTHERS.items():
        assert ids(TokenLoader(data, **{**SETTINGS, **IF_NOBODY_SAYS, name: other})) != unset, f"{name} makes no difference here"
        # One of them given says nothing about the others.
        assert ids(TokenLoader(data, **SETTINGS, **{name: IF_NOBODY_SAYS[name]})) == unset, name


def test_what_nobody_says_is_as_in_the_state_that_is_loaded(data: str) -> None:
    saved = TokenLoader(data, **SETTINGS, **OTHERS)
    iterator = iter(saved)
    for _ in range(3):
        next(iterator)
    state = saved.state_dict()
    resumed = TokenLoader(data, **SETTINGS)
    resumed.load_state_dict(state)
    assert ids(resumed) == [batch["input_ids"].tolist() for batch in iterator]
    for name, value in IF_NOBODY_SAYS.items():
        with pytest.raises(ShardfeedError, match=name):
            TokenLoader(data, **SETTINGS, **{name: value}).load_state_dict(state)


def test_what_nobody_says_to_a_reader_is_as_promised(tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    told = {name: getattr(reader, name) for name in OF_A_READER if name != "fs"}
    assert told == {name: default for name, default in OF_A_READER.items() if name != "fs"}
