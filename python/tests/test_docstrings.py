"""The examples in docstrings run."""

import doctest
import importlib
import pkgutil
from pathlib import Path

import pytest
import shardfeed
import torch
import torch.distributed.checkpoint as dcp

MODULES = [module.name for module in pkgutil.walk_packages(shardfeed.__path__, "shardfeed.") if not module.name.endswith("._native")]


@pytest.mark.parametrize("name", ["shardfeed", *MODULES])
def test_examples_run(name: str, data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a data set, a model, and a checkpoint of it."""
    model = torch.nn.Linear(2, 3)
    dcp.save({"model": model.state_dict(), "step": 1000}, checkpoint_id=tmp_path / "checkpoints" / "step-1000", no_dist=True)
    monkeypatch.chdir(tmp_path)
    module = importlib.import_module(name)
    assert module.__doc__, "every module says what it is about"
    # What needs torch is there once somebody asks for it.
    assert all(hasattr(module, public) for public in getattr(module, "__all__", ()))
    assert doctest.testmod(module, extraglobs={"data": data, "model": model}).failed == 0


@pytest.mark.parametrize("name", ["Reader", "load", "install", "inspect", "TokenLoader", "TokenDataset"])
def test_what_is_used_most_has_one(name: str) -> None:
    of = {"TokenLoader": "shardfeed", "TokenDataset": "shardfeed.torch"}
    documented = getattr(importlib.import_module(of.get(name, "shardfeed.checkpoint")), name)
    assert len(doctest.DocTestParser().get_examples(documented.__doc__)) > 1


def test_there_are_some() -> None:
    finder = doctest.DocTestFinder()
    tests = [test for name in MODULES for test in finder.find(importlib.import_module(name))]
    assert sum(len(test.examples) for test in tests) > 20
    assert any(test.name == "shardfeed.checkpoint.Reader" and test.examples for test in tests)
