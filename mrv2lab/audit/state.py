"""What Python's own objects hold, put back after a step that was only looked at.

Attributes, entries of dictionaries, lists and sets, variables of closures and of modules, as far as a walk
from the step comes. What an iterator has used up, or an object in C++ holds, cannot be put back.
"""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import chain
from types import FunctionType, MethodType
from typing import Any, NamedTuple

import torch

from mrv2lab.audit import names
from mrv2lab.audit.atoms import SCALARS
from mrv2lab.audit.lines import is_users, same


class _Part(NamedTuple):
    """One thing that holds others: what it holds now, by key, and how to let it hold something."""

    now: Callable[[], dict[Any, Any]]
    put: Callable[[dict[Any, Any]], Any]


class State:
    """What objects hold that can be reached from some, at the time when this is made.

    Attributes:
        is_whole: whether no iterator is among them.
    """

    def __init__(self, named: names.Named) -> None:
        step = [named.step] if isinstance(named, names.Reachable) else []
        known = names.holders(named)
        self.is_whole = not any(issubclass(type(one), Iterator) for one in known)
        held = (part for one in chain(step, known) for part in _parts(one))
        self._held = [(part, part.now()) for part in held]

    def put_back(self) -> bool:
        """Let all hold what they held. Returns whether anything was different."""
        changed = [(part, held) for part, held in self._held if not _is_same(part.now(), held)]
        for part, held in changed:
            part.put(held)
        return bool(changed)


def _is_same(now: dict[Any, Any], held: dict[Any, Any]) -> bool:
    if len(now) != len(held) or [*now] != [*held]:
        return False
    pairs = ((now[key], held[key]) for key in held)
    return all(a is b or (type(a) in SCALARS and same(a, b)) for a, b in pairs)


def _parts(one: Any) -> Iterator[_Part]:
    kind = type(one)  # not isinstance: it asks an object what it is
    if issubclass(kind, dict):
        yield _Part(partial(dict, one), partial(_refill, one))
    elif issubclass(kind, list | deque):
        yield _Part(lambda: dict(enumerate(one)), lambda held: _refill(one, held.values()))
    elif issubclass(kind, set):
        yield _Part(lambda: dict.fromkeys(one), partial(_refill, one))
    elif issubclass(kind, torch.Tensor):
        if one.is_leaf:
            yield _Part(lambda: {"grad": one.grad}, partial(_set, one))
    elif issubclass(kind, FunctionType):
        if is_users(one.__code__):
            cells, outer = one.__closure__ or (), one.__globals__
            used = [name for name in names.global_names(one.__code__) if name in outer]
            yield _Part(lambda: {name: outer[name] for name in used if name in outer}, outer.update)
            for cell in cells:
                yield _Part(partial(_attributes, cell, ["cell_contents"]), partial(_set, cell))
    elif issubclass(kind, MethodType | partial):
        yield from _parts(one.__func__ if issubclass(kind, MethodType) else one.func)
    else:
        kinds = [base for base in kind.__mro__ if not names.is_of_library(base)]
        slots = [name for base in kinds for name in [*vars(base).get("__slots__", ())]]
        if slots:
            yield _Part(partial(_attributes, one, slots), partial(_set, one))
        if type(stored := _dict_of(one)) is dict:
            yield _Part(partial(dict, stored), partial(_refill, stored))
        for base in kinds:
            plain = [name for name, item in vars(base).items() if type(item) in SCALARS and name[:2] != "__"]
            if plain:
                yield _Part(partial(_attributes, base, plain), partial(_set, base))


def _dict_of(one: Any) -> Any:
    with suppress(Exception):  # an object that does not let itself be looked at
        return object.__getattribute__(one, "__dict__")


def _refill(container: Any, held: Any) -> None:
    container.clear()
    (container.extend if hasattr(container, "extend") else container.update)(held)


def _attributes(one: Any, attributes: list[str]) -> dict[str, Any]:
    """Those that are there: a slot, or a variable, may be empty."""
    found: dict[str, Any] = {}
    for name in attributes:
        try:
            found[name] = getattr(one, name)
        except Exception:
            continue
    return found


def _set(one: Any, held: dict[str, Any]) -> None:
    for name, item in held.items():
        setattr(one, name, item)
