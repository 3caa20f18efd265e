"""Tensors in nested arguments, for what is recorded or replayed by the thousand.

As torch's pytree has it, which takes ten times as long for a flat list of arguments; what is no plain tuple,
list or dictionary goes its way.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils import _pytree

Change = Callable[[torch.Tensor], Any]

_LEAVES = {int, float, bool, complex, str, type(None), torch.Tensor, torch.dtype, torch.device}


def leaves(*values: Any) -> Iterator[Any]:
    """What is no container, in order."""
    for value in values:
        kind = type(value)
        if kind in _LEAVES:
            yield value
        elif kind is tuple or kind is list:
            yield from leaves(*value)
        elif kind is dict:
            yield from leaves(*value.values())
        else:
            yield from _pytree.tree_leaves(value)


def tensors_in(*values: Any) -> list[torch.Tensor]:
    """Every tensor, in order."""
    return [leaf for leaf in leaves(*values) if isinstance(leaf, torch.Tensor)]


def each_tensor(change: Change, values: Any) -> Any:
    """The same with another thing in the place of each tensor."""
    kind = type(values)
    if isinstance(values, torch.Tensor):
        return change(values)
    if kind in _LEAVES:
        return values
    if kind is tuple or kind is list:
        return kind([each_tensor(change, value) for value in values])
    if kind is dict:
        return {key: each_tensor(change, value) for key, value in values.items()}
    return _pytree.tree_map_only(torch.Tensor, change, values)


def once(change: Change) -> Change:
    """For each tensor the same each time. One that is given twice stays one: ops can tell."""
    made: dict[int, Any] = {}

    def changed(tensor: torch.Tensor) -> Any:
        if id(tensor) not in made:
            made[id(tensor)] = change(tensor)
        return made[id(tensor)]

    return changed
