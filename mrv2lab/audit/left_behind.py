"""left-behind: a step leaves a value in Python, and a replay does not: it runs no Python."""

import ast
import re
from collections.abc import Iterator

from mrv2lab.audit import names
from mrv2lab.audit.evidence import Evidence, Findings
from mrv2lab.audit.report import Finding, Place
from mrv2lab.audit.trace import Trace

KIND, SHORT, RANK = "left-behind", "left", 8
ASKED = "nothing"


def find(evidence: Evidence) -> Findings:
    """Of values that are said to be read. Others may be there for people to look at: they are noted."""
    reads = evidence.passes.engine.reads
    if reads is not None:
        attributes = reversed(getattr(getattr(reads, "__code__", None), "co_names", ()))
        for path, (old, new) in evidence.left_behind.items():
            text = f"is {old!r} after a replay and {new!r} after the step, which sets it"
            found = (setter(evidence.eager, name) for name in (*attributes, path))
            at, place, target = next((one for one in found if one[1] is not None), (0, None, path))
            subject = target if path == names.READ else path
            yield at, Finding(KIND, subject, text, place, (old, new))


def setter(trace: Trace, path: str) -> tuple[int, Place | None, str]:
    """The first line of a pass that assigns to what a path ends with, and what it calls that. Of an element
    that may be the container: its key may come from a variable. Else the line that binds what it lies in."""
    positions = trace.lines.positions
    ends = [re.findall(r"\w+", part)[-1] for part in (path, re.sub(r"(\[[^\]]*\])+$", "", path))]
    owners = [re.findall(r"\w+", owner)[-1] for owner in _owners(path)]
    for name, is_whole in [*((end, False) for end in ends), *((owner, True) for owner in owners)]:
        for order, position in enumerate(() if name.isdigit() else trace.values):
            for text in _assigned(positions.statements(position)):
                words = re.findall(r"\w+", text)
                if words[-1] == name if is_whole else name in words:
                    return order, positions.place(position), text
    return 0, None, path


def _owners(path: str) -> Iterator[str]:
    """What a path leads through, the last first."""
    while (shorter := re.sub(r"(\.\w+|\[[^\]]*\])$", "", path)) != path:
        yield (path := shorter)


def _assigned(statements: list[ast.stmt]) -> Iterator[str]:
    for statement in statements:
        if isinstance(statement, ast.Assign | ast.AugAssign | ast.AnnAssign):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            yield from map(ast.unparse, targets)
