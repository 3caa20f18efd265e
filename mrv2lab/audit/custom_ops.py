"""Ops that Python implements (`torch.library`): dispatch hides what they do, an audit wants to see it."""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch.library import Library

from mrv2lab.audit.recorder import entered


@contextmanager
def visible_custom_ops() -> Iterator[None]:
    """Ops whose implementation is registered inside are looked into by every audit from then on.

    Enter it before the library is imported that registers them.
    """
    original = Library.impl

    def impl(self: Library, op_name: Any, fn: Any, *args: Any, **kwargs: Any) -> Any:
        return original(self, op_name, _visible(fn) if hasattr(fn, "__code__") else fn, *args, **kwargs)

    Library.impl = impl  # type: ignore[method-assign]
    try:
        yield
    finally:
        Library.impl = original  # type: ignore[method-assign]


def _visible(fn: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(fn)
    def run(*args: Any, **kwargs: Any) -> Any:
        recorder = entered()
        if recorder is None:
            return fn(*args, **kwargs)
        with recorder.looking_inside():
            return fn(*args, **kwargs)

    return run
