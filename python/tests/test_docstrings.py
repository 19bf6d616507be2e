"""The examples in docstrings run."""

import doctest
import importlib
import pkgutil

import pytest
import shardfeed

MODULES = [f"shardfeed.{module.name}" for module in pkgutil.walk_packages(shardfeed.__path__) if module.name != "_native"]


@pytest.mark.parametrize("name", ["shardfeed", *MODULES])
def test_examples_run(name: str, data: str) -> None:
    module = importlib.import_module(name)
    assert module.__doc__, "every module says what it is about"
    assert doctest.testmod(module, extraglobs={"data": data}).failed == 0


def test_there_are_some() -> None:
    finder = doctest.DocTestFinder()
    tests = [test for name in MODULES for test in finder.find(importlib.import_module(name))]
    assert sum(len(test.examples) for test in tests) > 4
