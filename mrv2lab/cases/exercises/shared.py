"""What every runner shares, and a reader's function must leave alone: functions and classes of mrv2lab, and
torch's public ones.

A repair that replaces a method of a class changes every run after it, and the eager reference with them.
"""

import builtins
import functools
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import torch

_TORCH = ("torch", "torch.cuda", "torch.nn.functional", "torch.nn.init", "torch.random")
_TORCH_FOLDER = Path(torch.__file__).parent
_ABSENT = object()


@contextmanager
def put_back() -> Iterator[list[str]]:
    """Within this context all that may be changed; afterwards it is as before.

    Yields:
        Names of what was changed, filled in at the end.
    """
    changed: list[str] = []
    owners = list(_owners())
    before = [(owner, _attributes(owner)) for owner in owners]
    insides = {id(f): (f, _inside(f)) for _, held in before for f in map(_function, held.values()) if f}
    dtype = torch.get_default_dtype()
    try:
        yield changed
    finally:
        is_other_dtype = torch.get_default_dtype() is not dtype
        torch.set_default_dtype(dtype)  # first: torch.Storage follows it
        for owner, attributes in before:
            changed += (f"{owner.__name__}.{name}" for name in _restore(owner, attributes))
        for function, inside in insides.values():
            if any(now is not then for now, then in zip(_inside(function), inside, strict=True)):
                function.__code__, function.__defaults__, function.__kwdefaults__ = inside
                changed.append(f"{function.__module__}.{function.__qualname__}")
        if is_other_dtype:
            changed.append("torch's default dtype")
        if changed:
            _forget(before)


def _owners() -> Iterator[Any]:
    """Modules of mrv2lab and the classes defined in them, and those of torch whose functions models call."""
    ours = [m for name, m in sys.modules.items() if name.split(".")[0] == "mrv2lab" and m is not None]
    for module in ours:
        yield module
        yield from (
            v for v in vars(module).values() if isinstance(v, type) and v.__module__ == module.__name__
        )
    yield from (sys.modules[name] for name in _TORCH)
    yield from (builtins, torch.Tensor)
    yield from (value for value in vars(torch.nn).values() if isinstance(value, type))


def _attributes(owner: Any) -> dict[str, Any]:
    """What could be replaced to any effect: of private names functions alone, for caches have such names."""
    is_ours = _is_ours(owner)
    return {
        name: value
        for name, value in vars(owner).items()
        if not isinstance(value, ModuleType)
        and (_is_behaviour(value) or (is_ours and not name.startswith("_")))
    }


def _is_ours(owner: Any) -> bool:
    module = owner.__name__ if isinstance(owner, ModuleType) else owner.__module__
    return bool(module.split(".")[0] == "mrv2lab")


def _is_behaviour(value: Any) -> bool:
    return callable(value) or isinstance(value, staticmethod | classmethod | property)


def _restore(owner: Any, attributes: dict[str, Any]) -> Iterator[str]:
    """Put back what was replaced or taken away, and take away what hides an inherited or built-in name."""
    held = vars(owner)
    for name, value in attributes.items():
        if held.get(name, _ABSENT) is not value and not _is_of_torch(held.get(name)):
            setattr(owner, name, value)
            yield name
    for name in [name for name, value in held.items() if name not in attributes and _is_behaviour(value)]:
        if _hides(owner, name):
            delattr(owner, name)
            yield name


def _hides(owner: Any, name: str) -> bool:
    if isinstance(owner, ModuleType):
        return _is_ours(owner) and hasattr(builtins, name) and not name.startswith("__")
    return any(name in vars(base) for base in owner.__mro__[1:])


def _is_of_torch(value: Any) -> bool:
    """Whether torch has put it there, which wraps functions of its own once its compiler is imported."""
    code = getattr(value, "__code__", None)
    return code is not None and Path(code.co_filename).is_relative_to(_TORCH_FOLDER)


def _function(value: Any) -> FunctionType | None:
    value = getattr(value, "__func__", value)
    return value if isinstance(value, FunctionType) else None


def _inside(function: FunctionType) -> tuple[Any, Any, Any]:
    return function.__code__, function.__defaults__, function.__kwdefaults__


def _forget(owners: Any) -> None:
    """Results kept from a changed mrv2lab, above all eager references, are those of another program."""
    for owner, attributes in owners:
        if owner.__name__.startswith("mrv2lab.cases"):
            for value in attributes.values():
                if isinstance(value, functools._lru_cache_wrapper):
                    value.cache_clear()
