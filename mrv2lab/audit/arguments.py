"""What `audit` is given: functions, tensors and numbers of rows, or a word on what is none."""

import operator
from collections.abc import Callable, Collection
from functools import partial
from typing import Any

import torch

from mrv2lab.errors import BadInput

_HOW = {
    "beside": "a list of functions, each captures another step",
    "inputs": "a list of the static input tensors",
    "rows": "a function that returns how many rows are real: rows=lambda: n",
    "twin": "a function that makes a fresh engine each time it is called: twin=make_engine",
}


_SEVERAL: dict[str, Callable[[Any], bool]] = {"beside": callable, "inputs": torch.is_tensor}


def check(**given: Any) -> None:
    """BadInput: what is to be called cannot be, or what is to be a tensor is none."""
    for name, value in given.items():
        if name in _SEVERAL:
            is_list = isinstance(value, Collection) and not torch.is_tensor(value)
            fits = is_list and all(map(_SEVERAL[name], value))
        else:
            fits = callable(value) or (value is None and name != "step")
        if not fits:
            takes = _HOW.get(name, "a function without arguments")
            raise BadInput(f"{name}={str(value)[:60]} is a {type(value).__name__}; it takes {takes}")


def counting(rows: Callable[[], Any]) -> Callable[[], int]:
    """The same, where it gives a number of rows. BadInput: it does not."""
    return partial(_count, rows)


def _count(rows: Callable[[], Any]) -> int:
    try:
        number = operator.index(told := rows())
    except TypeError:
        number = -1
    if number < 0:
        raise BadInput(f"rows() returned {told!r}; it returns how many rows are real, a whole number")
    return number
