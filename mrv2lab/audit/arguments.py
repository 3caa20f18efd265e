"""What `audit` is given: functions, tensors and numbers of rows, or a word on what is none."""

import inspect
import operator
import reprlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from mrv2lab.errors import BadInput

_HOW = {
    "beside": "a list of functions, each captures another step",
    "inputs": "a list of the static input tensors",
    "rows": "a function that returns how many rows are real: rows=lambda: n",
    "twin": "a function that makes a fresh engine each time it is called: twin=make_engine",
}


def asks_nothing(value: Any) -> bool:
    """Whether it can be called without arguments: itself, and not what it may be wrapped around."""
    try:
        inspect.signature(value, follow_wrapped=False).bind()
    except TypeError:
        return False
    except ValueError:  # of C++, whose signature nobody knows
        return callable(value)
    return True


_SEVERAL: dict[str, Callable[[Any], bool]] = {"beside": asks_nothing, "inputs": torch.is_tensor}


def check(in_flight: int = 0, **given: Any) -> None:
    """BadInput: what is to be called cannot be, or asks for something, or what is to be a tensor is none."""
    _count(in_flight, "in_flight is", "how many steps later a result is still read")
    for name, value in given.items():
        if name in _SEVERAL:
            is_list = isinstance(value, Iterable) and not isinstance(value, Iterator | torch.Tensor)
            fits = is_list and all(map(_SEVERAL[name], value))
        else:
            fits = asks_nothing(value) or (value is None and name != "step")
        if fits:
            continue
        takes = _HOW.get(name, "a function without arguments")
        if callable(value) and name not in _SEVERAL:
            let = "; let inputs lie outside, and vary() change them there" if name in ("step", "vary") else ""
            told = f"{getattr(value, '__name__', name)}() asks for {', '.join(_asked_for(value))}"
            raise BadInput(f"{told}; {name} takes {takes}{let}")
        raise BadInput(f"{name} is {reprlib.repr(value)}; it takes {takes}")


def _asked_for(function: Callable[..., Any]) -> list[str]:
    """The arguments without which it cannot be called."""
    parameters = inspect.signature(function, follow_wrapped=False).parameters.values()
    may_lack = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD
    return [one.name for one in parameters if one.default is one.empty and one.kind not in may_lack]


def counting(rows: Callable[[], Any]) -> Callable[[], int]:
    """The same, where it gives a number of rows. BadInput: it does not."""
    return lambda: _count(rows(), "rows() returned", "how many rows are real")


def _count(given: Any, told: str, meant: str) -> int:
    try:
        number = operator.index(given)
    except TypeError:
        number = -1
    if number < 0:
        raise BadInput(f"{told} {reprlib.repr(given)}; it is {meant}, a whole number")
    return number
