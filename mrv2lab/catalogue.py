"""The cases as they are told apart: names, titles, links, variants.

Read off their source: to import a case takes torch, and seconds.
"""

import ast
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal, get_args

from mrv2lab.errors import BadInput, choose

Rung = Literal["emulated", "cuda", "source", "vllm"]  # how real a run is

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
    rungs: tuple[str, ...]
    variants: tuple[VariantEntry, ...]
    shapes: tuple[str, ...]  # names of what has `limits`


@cache
def entries() -> dict[str, Entry]:
    """Every case by its name, in the order of `cases.CASES`."""
    return {name: entry for name in listed() if (entry := _entry(name))}


def check(case: str, variants: Sequence[str] = (), rung: str = "auto", shapes: Collection[str] = ()) -> None:
    """See that a case is there, and has these. BadInput: lists those that there are."""
    if case in listed() and case not in entries():
        raise BadInput(f"{case} is not finished: mrv2lab/cases/{case}.py has no CASE")
    entry = entries()[choose("case", case, list(entries()))]
    if rung != "auto":
        choose(f"rung of {case}", rung, entry.rungs)
    for name in variants:
        choose(f"variant of {case}", name, [variant.name for variant in entry.variants])
    for name in shapes:
        choose(f"shape of {case}", name, entry.shapes)


@cache
def listed() -> list[str]:
    """The modules of cases, finished or not."""
    return [node.id for node in ast.walk(_assigned("__init__")["_MODULES"]) if isinstance(node, ast.Name)]


def _assigned(module: str) -> dict[str, ast.expr]:
    """What stands behind each name of a module of cases."""
    body = ast.parse((_CASES / f"{module}.py").read_text()).body
    return {ast.unparse(node.targets[0]): node.value for node in body if isinstance(node, ast.Assign)}


def _entry(module: str) -> Entry | None:
    assigned = _assigned(module)
    case = assigned.get("CASE")
    if not isinstance(case, ast.Call):
        return None
    given = {keyword.arg: keyword.value for keyword in case.keywords}
    name, title, upstream = (ast.literal_eval(given[field]) for field in ("name", "title", "upstream"))
    calls = [assigned.get(ast.unparse(node), node) for node in ast.iter_child_nodes(given["variants"])]
    of_calls = (call.args for call in calls if isinstance(call, ast.Call))
    variants = [VariantEntry(ast.unparse(name), *map(ast.literal_eval, rest[:2])) for name, *rest in of_calls]
    rungs = ast.literal_eval(given["rungs"]) if "rungs" in given else get_args(Rung)
    limits = given.get("limits", ast.Name("LIMITS"))
    trees = [_assigned("base")["LIMITS"]] * ("LIMITS" in ast.unparse(limits)) + [limits]
    dicts = (node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Dict))
    shapes = dict.fromkeys(ast.literal_eval(key) for one in dicts for key in one.keys if key)
    return Entry(name, title, upstream, rungs, tuple(variants), tuple(shapes))
