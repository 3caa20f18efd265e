"""host-sync: the step makes the host wait for the device, which no graph can hold."""

import ast

from mrv2lab.audit.atoms import statements_at
from mrv2lab.audit.report import Finding, Place
from mrv2lab.errors import HostSyncError

_WAITS = {"item", "tolist", "cpu", "numpy", "nonzero", "unique", "synchronize", "bool", "int", "float", "to"}


def of_error(error: HostSyncError, place: Place | None) -> Finding:
    """What waited, and the line that asked for it."""
    return Finding("host-sync", _subject(place), str(error), place)


def _subject(place: Place | None) -> str:
    """The expression that waits: the receiver or the argument of the call, or the condition of a branch."""
    statements = statements_at(place.file, place.line) if place else []
    if not statements:
        return "the step"
    statement = statements[-1]
    for node in ast.walk(statement):
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Attribute) and node.func.attr in _WAITS:
                is_function = isinstance(node.func.value, ast.Name) and node.func.value.id == "torch"
                is_whole = is_function or node.func.attr == "synchronize"
                return ast.unparse(node if is_whole else node.func.value)
            if isinstance(node.func, ast.Name) and node.func.id in _WAITS and node.args:
                return ast.unparse(node.args[0])
    part = getattr(statement, "test", None) or getattr(statement, "value", None)
    return ast.unparse(part or statement)
