"""What every runner shares, and a reader's function must leave alone: mrv2lab's own functions and classes.

A repair that replaces a method of a class changes every run after it, and the eager reference with them.
"""

import functools
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch

_SPECIAL = ("__init__", "__call__")


@contextmanager
def put_back() -> Iterator[list[str]]:
    """Within this context mrv2lab may be changed; afterwards it is as before.

    Yields:
        Names of what was changed, filled in at the end.
    """
    changed: list[str] = []
    before = {id(owner): (owner, _attributes(owner)) for owner in _owners()}
    dtype = torch.get_default_dtype()
    try:
        yield changed
    finally:
        for owner, attributes in before.values():
            for name, value in attributes.items():
                if vars(owner).get(name) is not value:
                    setattr(owner, name, value)
                    changed.append(f"{owner.__name__}.{name}")
        if torch.get_default_dtype() is not dtype:
            torch.set_default_dtype(dtype)
            changed.append("torch's default dtype")
        if changed:
            _forget(before.values())


def _owners() -> list[Any]:
    """Modules of mrv2lab, and the classes defined in them."""
    modules = [m for name, m in sys.modules.items() if name.split(".")[0] == "mrv2lab" and m is not None]
    return modules + [
        value
        for module in modules
        for value in vars(module).values()
        if isinstance(value, type) and value.__module__ == module.__name__
    ]


def _attributes(owner: Any) -> dict[str, Any]:
    return {
        name: value
        for name, value in vars(owner).items()
        if (not name.startswith("_") or name in _SPECIAL) and not isinstance(value, ModuleType)
    }


def _forget(owners: Any) -> None:
    """Results kept from a changed mrv2lab, above all eager references, are those of another program."""
    for owner, attributes in owners:
        if owner.__name__.startswith("mrv2lab.cases"):
            for value in attributes.values():
                if isinstance(value, functools._lru_cache_wrapper):
                    value.cache_clear()
