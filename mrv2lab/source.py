"""The difference between two functions, as source: the lesson of a pair of variants."""

import difflib
import inspect
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from mrv2lab import looks

_CLASSES = {"+": "added", "-": "removed", "@": "quiet"}


@dataclass(frozen=True, repr=False)
class Diff:
    lines: tuple[str, ...]

    def __repr__(self) -> str:
        return "\n".join(self.lines) or "no difference"

    def _repr_html_(self) -> str:
        return looks.part(looks.piece("diff", [(line, _CLASSES.get(line[:1])) for line in self.lines]))


def diff(before: Callable[..., Any], after: Callable[..., Any]) -> Diff:
    """Compare the bodies of two functions, docstrings included. OSError: one was typed at a prompt."""
    old, new = (_lines(fn) for fn in (before, after))
    return Diff(tuple(difflib.unified_diff(old, new, before.__name__, after.__name__, n=20, lineterm="")))


@dataclass(frozen=True, repr=False)
class SideBySide:
    """Two functions, one beside the other. A notebook shows them closed; print them to read them at once.

    Lines that only one of the two has are bold, and in colour.
    """

    left: tuple[str, ...]
    right: tuple[str, ...]
    titles: tuple[str, str]

    def __repr__(self) -> str:
        return f"{self.titles[1]}: closed; open it above, or print it"

    def __str__(self) -> str:
        width = max(map(len, (*self.left, self.titles[0])))
        rows = zip_longest((self.titles[0], "", *self.left), (self.titles[1], "", *self.right), fillvalue="")
        return "\n".join(f"{a:{width}} | {b}".rstrip() for a, b in rows)

    def _repr_html_(self) -> str:
        known = {line.strip() for line in self.left} & {line.strip() for line in self.right}
        sides = [
            [(line, None if line.strip() in known else kind) for line in lines]
            for lines, kind in ((self.left, "removed"), (self.right, "added"))
        ]
        whose = "the upstream" if self.titles[1].startswith("upstream") else "our"
        return looks.part(looks.piece("side_by_side", whose, self.titles, sides))


def side_by_side(
    left: Callable[..., Any] | None, right: Callable[..., Any], titles: tuple[str, str]
) -> SideBySide:
    """Two functions beside each other; one that is missing, or has no source, leaves its side empty."""
    try:
        lines = _lines(left) if left is not None else []
    except (OSError, TypeError):  # typed at a prompt, or no function at all
        lines = ["(its source is not known)"]
    return SideBySide(tuple(lines), tuple(_lines(right)), titles)


def _lines(fn: Callable[..., Any]) -> list[str]:
    return textwrap.dedent(inspect.getsource(fn)).splitlines()
