"""Arguments of the wrong kind, refused by their names: numbers come from files and command lines as text."""

import operator
from typing import Any


def refuse_numbers_out_of(first: int, end: int, **numbers: int | None) -> None:
    """What is no whole number, or not in the range. None is for who does not say.

    >>> refuse_numbers_out_of(1, 2**32, threads=8, lanes=None)
    >>> refuse_numbers_out_of(1, 2**32, threads="8")
    Traceback (most recent call last):
        ...
    TypeError: threads is '8', of type str; it is a whole number
    """
    for name, given in numbers.items():
        if given is None:
            continue
        try:
            number = operator.index(given)
        except TypeError:
            raise _other_kind(name, given, "a whole number") from None
        if isinstance(given, bool):
            raise _other_kind(name, given, "a whole number")
        if not first <= number < end:
            raise ValueError(f"{name} is {number}; it is at least {first}, and less than 2**{end.bit_length() - 1}")


def refuse_none(**given: Any) -> None:
    """Where somebody has to say."""
    for name, value in given.items():
        if value is None:
            raise TypeError(f"{name} is None, and has to be given")


def refuse_other_than_bools(**given: bool | None) -> None:
    """What is neither True nor False. None is for who does not say."""
    for name, value in given.items():
        # NumPy has some of its own.
        kind = type(value)
        if value is not None and kind is not bool and (kind.__module__, kind.__name__.rstrip("_")) != ("numpy", "bool"):
            raise _other_kind(name, value, "True or False")


def refuse_other_than_words(**given: str | None) -> None:
    """What is no string. None is for who does not say."""
    for name, value in given.items():
        if value is not None and not isinstance(value, str):
            raise _other_kind(name, value, "a word, as a string")


def refuse_other_than_callables(**given: Any) -> None:
    """What cannot be called. None is for who does not want to be."""
    for name, value in given.items():
        if value is not None and not callable(value):
            raise _other_kind(name, value, "something to call")


def _other_kind(name: str, value: object, kind: str) -> TypeError:
    return TypeError(f"{name} is {value!r}, of type {type(value).__name__}; it is {kind}")
