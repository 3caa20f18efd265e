"""The difference between two functions, as source: the lesson of a pair of variants."""

import difflib
import html
import inspect
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

_COLOURS = {"+": "#0072b2", "-": "#d55e00", "@": "#777777"}  # safe for colour-blind readers


@dataclass(frozen=True, repr=False)
class Diff:
    """Lines of a unified diff; a notebook shows them in colour."""

    lines: tuple[str, ...]

    def __repr__(self) -> str:
        return "\n".join(self.lines) or "no difference"

    def _repr_html_(self) -> str:
        rows = [
            f'<span style="color:{_COLOURS.get(line[:1], "inherit")}">{html.escape(line)}</span>'
            for line in self.lines
        ]
        return f"<pre>{chr(10).join(rows) or 'no difference'}</pre>"


def diff(before: Callable[..., Any], after: Callable[..., Any]) -> Diff:
    """Compare the bodies of two functions, docstrings included.

    Raises:
        OSError: a function has no source, for example one typed at a Python prompt.
    """
    old, new = (_lines(fn) for fn in (before, after))
    return Diff(tuple(difflib.unified_diff(old, new, before.__name__, after.__name__, n=20, lineterm="")))


def _lines(fn: Callable[..., Any]) -> list[str]:
    return textwrap.dedent(inspect.getsource(fn)).splitlines()
