"""What every runner shares, and a reader's function must leave alone.

Functions, classes and cases of mrv2lab, torch's public functions, and the settings of the process.

A repair that replaces a method of a class changes every run after it, and the eager reference with them. One
that changes the configuration it is given asks for fewer graphs, and is judged by those that it was to have.
"""

import builtins
import functools
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import is_dataclass
from functools import partial
from operator import attrgetter
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any
from unittest.mock import patch

import torch

from mrv2lab.runner import RunnerConfig

_TORCH = ("torch", "torch.cuda", "torch.nn.functional", "torch.nn.init", "torch.random")
_TORCH_FOLDER = Path(torch.__file__).parent
_ABSENT = object()
_inside = attrgetter("__code__", "__defaults__", "__kwdefaults__")


@contextmanager
def put_back() -> Iterator[list[str]]:
    """Afterwards all that is as before. Yields the names of what was changed, filled in at the end."""
    changed: list[str] = []
    before = [(owner, _attributes(owner)) for owner in _owners()]
    functions = (getattr(value, "__func__", value) for _, held in before for value in held.values())
    insides = {id(f): (f, _inside(f)) for f in functions if isinstance(f, FunctionType)}
    settings = {name: get() for name, (get, _) in _SETTINGS.items()}
    try:
        with _configs() as configs:
            yield changed
    finally:
        others = [name for name, (get, _) in _SETTINGS.items() if get() != settings[name]]
        for name in others:  # first: torch.Storage follows the default dtype
            _SETTINGS[name][1](settings[name])
        for owner, attributes in before:
            changed += (f"{_name_of(owner)}.{name}" for name in _restore(owner, attributes))
        for function, inside in insides.values():
            if any(now is not then for now, then in zip(_inside(function), inside, strict=True)):
                function.__code__, function.__defaults__, function.__kwdefaults__ = inside
                changed.append(f"{function.__module__}.{function.__qualname__}")
        changed += others
        given = ((vars(config), *item) for config, held in configs for item in held.items())
        changed += dict.fromkeys(f"RunnerConfig.{name}" for now, name, then in given if now.get(name) != then)
        if changed:
            _forget(before)


def _refill(target: dict[Any, Any], held: dict[Any, Any]) -> None:
    target.clear()
    target.update(held)


_SETTINGS: dict[str, tuple[Any, Any]] = {
    "torch's default dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "torch's grad mode": (torch.is_grad_enabled, torch.set_grad_enabled),
    "torch's choice of deterministic algorithms": (
        torch.are_deterministic_algorithms_enabled,
        torch.use_deterministic_algorithms,
    ),
    "torch's number of threads": (torch.get_num_threads, torch.set_num_threads),
    "torch's precision of products": (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    "Python's recursion limit": (sys.getrecursionlimit, sys.setrecursionlimit),
} | {
    f"torch's hooks of all modules, {name}": (partial(dict, hooks), partial(_refill, hooks))
    for name, hooks in vars(torch.nn.modules.module).items()
    if name.startswith("_global_") and isinstance(hooks, dict)
}


@contextmanager
def _configs() -> Iterator[list[tuple[RunnerConfig, dict[str, Any]]]]:
    """Every configuration that is made inside, with what it was made of."""
    made: list[tuple[RunnerConfig, dict[str, Any]]] = []
    original = RunnerConfig.__init__

    def noted(config: RunnerConfig, *args: Any, **kwargs: Any) -> None:
        original(config, *args, **kwargs)
        made.append((config, dict(vars(config))))

    with patch.object(RunnerConfig, "__init__", noted):
        yield made


def _owners() -> Iterator[Any]:
    """Modules of mrv2lab, the classes and cases defined in them, and what models call of torch."""
    ours = [m for name, m in sys.modules.items() if name.split(".")[0] == "mrv2lab" and m is not None]
    for module in ours:
        yield module
        values = list(vars(module).values())
        yield from (v for v in values if isinstance(v, type) and v.__module__ == module.__name__)
        yield from (v for v in values if _is_ours(type(v)) and is_dataclass(v) and not isinstance(v, type))
    yield from (sys.modules[name] for name in _TORCH)
    yield from (builtins, torch.Tensor)
    yield from (value for value in vars(torch.nn).values() if isinstance(value, type))


def _attributes(owner: Any) -> dict[str, Any]:
    """What could be replaced to any effect: of private names functions alone, for caches have such names."""
    is_ours = not isinstance(owner, ModuleType | type) or _is_ours(owner)
    return {
        name: value
        for name, value in getattr(owner, "__dict__", {}).items()
        if not isinstance(value, ModuleType)
        and (_is_behaviour(value) or (is_ours and not name.startswith("_")))
    }


def _is_ours(owner: Any) -> bool:
    module = owner.__name__ if isinstance(owner, ModuleType) else owner.__module__
    return bool(module.split(".")[0] == "mrv2lab")


def _name_of(owner: Any) -> str:
    named = (getattr(owner, "__name__", None), getattr(owner, "name", None), type(owner).__name__)
    return str(next(filter(None, named)))


def _is_behaviour(value: Any) -> bool:
    return callable(value) or isinstance(value, staticmethod | classmethod | property)


def _restore(owner: Any, attributes: dict[str, Any]) -> Iterator[str]:
    """Put back what was replaced or taken away, and take away what hides an inherited or built-in name."""
    held = getattr(owner, "__dict__", {})
    is_object = not isinstance(owner, ModuleType | type)
    for name, value in attributes.items():
        if held.get(name, _ABSENT) is not value and not _wraps(held.get(name), value):
            (object.__setattr__ if is_object else setattr)(owner, name, value)  # a case is frozen
            yield name
    if is_object:
        return
    for name in [name for name, value in held.items() if name not in attributes and _is_behaviour(value)]:
        if _hides(owner, name):
            delattr(owner, name)
            yield name


def _hides(owner: Any, name: str) -> bool:
    if isinstance(owner, ModuleType):
        return _is_ours(owner) and hasattr(builtins, name) and not name.startswith("__")
    return any(name in vars(base) for base in owner.__mro__[1:])


def _wraps(value: Any, original: Any) -> bool:
    """Whether torch has put it round the original, as it does with some of its own for its compiler."""
    code = getattr(value, "__code__", None)
    is_of_torch = code is not None and Path(code.co_filename).is_relative_to(_TORCH_FOLDER)
    return is_of_torch and getattr(value, "__wrapped__", None) is original


def _forget(owners: Any) -> None:
    """Results kept from a changed mrv2lab, above all eager references, are those of another program."""
    of_cases = (held for owner, held in owners if _name_of(owner).startswith("mrv2lab.cases"))
    for value in (value for held in of_cases for value in held.values()):
        if isinstance(value, functools._lru_cache_wrapper):
            value.cache_clear()
