"""Pickles functions that no other process could import: those of a notebook.

A function of a module travels as a name. One of a notebook, or of the script that was started, travels as
its code and the globals that it uses, and is put together again by the same Python on the other side.
"""

import importlib
import io
import marshal
import pickle
from collections.abc import Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any


def dumps(value: Any) -> bytes:
    """Pickle `value`.

    Raises:
        TypeError: it holds a function that closes over variables of another, or something that cannot
            be pickled.
    """
    buffer = io.BytesIO()
    try:
        _Pickler(buffer).dump(value)
    except (pickle.PicklingError, AttributeError, RecursionError) as error:
        raise TypeError(f"cannot be given to another process: {error}") from error
    return buffer.getvalue()


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, ModuleType):
            return importlib.import_module, (value.__name__,)
        if isinstance(value, FunctionType) and value.__module__ == "__main__":
            return _rebuild, _taken_apart(value)
        return NotImplemented


def _taken_apart(fn: FunctionType) -> tuple[Any, ...]:
    if fn.__closure__:
        raise TypeError(f"{fn.__name__} uses variables of the function around it; write it at module level")
    names = set(_global_names(fn.__code__)) & fn.__globals__.keys()
    used = {name: fn.__globals__[name] for name in names if fn.__globals__[name] is not fn}
    return marshal.dumps(fn.__code__), fn.__name__, fn.__defaults__, fn.__kwdefaults__, used


def _global_names(code: CodeType) -> Iterator[str]:
    """Names that a function looks up, its inner functions included."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _global_names(constant)


def _rebuild(code: bytes, name: str, defaults: Any, kwdefaults: Any, used: dict[str, Any]) -> FunctionType:
    namespace = {"__builtins__": __builtins__, "__name__": "__main__", **used}
    fn = FunctionType(marshal.loads(code), namespace, name, defaults)
    fn.__kwdefaults__ = kwdefaults
    namespace[name] = fn  # it may call itself
    return fn
