"""The cases as they are told apart: names, titles, links, variants.

Read off their source: to import a case takes torch, and seconds.
"""

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from mrv2lab.errors import choose

Rung = Literal["emulated", "cuda", "source", "vllm"]
"""How real a run is."""

_CASES = Path(__file__).with_name("cases")


@dataclass(frozen=True)
class VariantEntry:
    """A variant, as `cases.Variant` has it."""

    name: str
    role: str
    expected: str


@dataclass(frozen=True)
class Entry:
    """A case, as `cases.Case` has it."""

    name: str
    title: str
    upstream: str
    variants: tuple[VariantEntry, ...]


@cache
def entries() -> dict[str, Entry]:
    """Every case by its name, in the order of `cases.CASES`."""
    modules = next(
        node.value
        for node in ast.parse((_CASES / "__init__.py").read_text()).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "_MODULES"
    )
    found = [_entry(name.id) for name in ast.walk(modules) if isinstance(name, ast.Name)]
    return {entry.name: entry for entry in found}


def check(case: str, variants: Sequence[str] = ()) -> None:
    """See that there is such a case, with such variants.

    Raises:
        BadInput: there is not; lists those there are.
    """
    entry = entries()[choose("case", case, list(entries()))]
    for name in variants:
        choose(f"variant of {case}", name, [variant.name for variant in entry.variants])


def _entry(module: str) -> Entry:
    [case] = _calls(ast.parse((_CASES / f"{module}.py").read_text()), "Case")
    given = {keyword.arg: keyword.value for keyword in case.keywords}
    name, title, upstream = (ast.literal_eval(given[field]) for field in ("name", "title", "upstream"))
    variants = [
        VariantEntry(ast.unparse(call.args[0]), *map(ast.literal_eval, call.args[1:3]))
        for call in _calls(given["variants"], "Variant")
    ]
    return Entry(name, title, upstream, tuple(variants))


def _calls(tree: ast.AST, name: str) -> list[ast.Call]:
    """Calls of a name, in the order in which they stand there."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return [call for call in calls if ast.unparse(call.func) == name]
