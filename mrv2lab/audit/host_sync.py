"""host-sync: the step makes the host wait for the device, which no graph can hold."""

import ast
from itertools import islice
from typing import Any

from mrv2lab.audit.atoms import statements_at
from mrv2lab.audit.lines import users_frame
from mrv2lab.audit.report import Finding, Place
from mrv2lab.errors import HostSyncError

KIND, SHORT = "host-sync", "sync"
_WAITS = {"item", "tolist", "cpu", "numpy", "nonzero", "unique", "synchronize", "bool", "int", "float", "to"}


def of_error(error: HostSyncError, place: Place | None) -> Finding:
    """What waited, and the line that asked for it."""
    statements = statements_at(place.file, place.line) if place else []
    return Finding(KIND, _subject(statements, _running(error)), str(error), place)


def _running(error: HostSyncError) -> tuple[Any, ...]:
    """Where the source of what ran stands: first line, last line, first column, last column."""
    if (at := users_frame(error)) is None:
        return ()
    return next(islice(at.tb_frame.f_code.co_positions(), at.tb_lasti // 2, None), ())


def _subject(statements: list[ast.stmt], running: tuple[Any, ...]) -> str:
    """The expression that waits: the receiver or the argument of the call, or the condition of a branch."""
    if not statements:
        return "the step"
    nodes = [node for statement in statements for node in ast.walk(statement) if isinstance(node, ast.expr)]
    exact = [n for n in nodes if (n.lineno, n.end_lineno, n.col_offset, n.end_col_offset) == running]
    if exact:
        return _waiting(exact[0]) or ast.unparse(exact[0])
    for node in ast.walk(statements[-1]):
        if subject := _waiting(node):
            return subject
    part = getattr(statements[-1], "test", None) or getattr(statements[-1], "value", None)
    return ast.unparse(part or statements[-1])


def _waiting(node: ast.AST) -> str | None:
    """What a call waits for, if its name says that it waits."""
    if not isinstance(node, ast.Call):
        return None
    if isinstance(node.func, ast.Attribute) and node.func.attr in _WAITS:
        is_function = isinstance(node.func.value, ast.Name) and node.func.value.id == "torch"
        is_whole = is_function or node.func.attr == "synchronize"
        return ast.unparse(node if is_whole else node.func.value)
    if isinstance(node.func, ast.Name) and node.func.id in _WAITS and node.args:
        return ast.unparse(node.args[0])
    return None
