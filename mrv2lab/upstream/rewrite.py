"""Statements of a function found by their syntax tree, and other statements put in their place.

`find` is a pattern, one statement as Python source. It matches a statement of its type whose parts match:

- the name `_` matches any one expression, read or assigned to;
- the statement `...` matches any run of statements, also none, so `if x: ...` fits any body. A part that the
  pattern leaves out must be absent: `if x: ...` fits no `if` with an else; with `else: ...` added it does;
- everything else must be equal as syntax. Layout, comments, brackets and quotes do not count, but
  `new_tensors = _` is no annotated assignment, and `def f(): ...` has no decorator.

All statements of the function are looked at, also those in loops and in functions and classes within it. Text
outside what was found stays as its author wrote it, comments included, so a diff shows the edit and no more.
"""

import ast
import difflib
import io
import itertools
import re
import textwrap
import tokenize
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard, TypeVar

from mrv2lab.errors import BadInput

T = TypeVar("T")
Function = ast.FunctionDef | ast.AsyncFunctionDef
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


class SourceChanged(BadInput):
    """The installed source is not the one an edit was written for. Says what was looked for and found."""


@dataclass(frozen=True)
class Edit:
    """One statement to look for in one function, and what stands there instead.

    Args:
        put: the statements that replace it; a statement `...` among them stands for what was found.

    Raises:
        BadInput: one of them is malformed.
    """

    where: str  # "package.module:Class.method" or "package.module:function"
    find: str  # a statement as a pattern, see this module
    put: str = "pass"
    matches: int = 1  # how many statements of the function must match; all are replaced

    def __post_init__(self) -> None:
        if not re.fullmatch(r"\w+(\.\w+)*:\w+(\.\w+)*", self.where):
            raise BadInput(f"where {self.where!r}; write 'package.module:Class.method' or '...:function'")
        found = _statements("find", self.find)
        if len(found) != 1 or _is_gap(found[0]) or self.matches < 1:
            raise BadInput(
                f"find {self.find!r} with matches={self.matches}; give one statement, 1 match or more"
            )
        if not _statements("put", self.put):
            raise BadInput(f"put {self.put!r} holds no statement; `pass` is the least")

    @property
    def module(self) -> str:
        """The module's dotted name."""
        return self.where.partition(":")[0]

    @property
    def path(self) -> list[str]:
        """The names that lead to the function within its module, its own last."""
        return self.where.partition(":")[2].split(".")

    @property
    def pattern(self) -> ast.stmt:
        """`find`, parsed."""
        return _statements("find", self.find)[0]


def _statements(name: str, text: str) -> list[ast.stmt]:
    try:
        return ast.parse(textwrap.dedent(text)).body
    except SyntaxError as error:
        raise BadInput(f"{name} {text!r} is not Python: {error.msg}") from error


def rewrite(source: str, edits: Sequence[Edit], file: str = "<source>") -> str:
    """Return a module's source with the edits made. All of them are found in the original.

    Raises:
        SourceChanged: a function or the stated number of matches is not there.
        BadInput: two edits overlap, a match shares a line with another statement, or the result is no Python.
    """
    lines = source.split("\n")  # not splitlines: a form feed ends no line for the parser
    tree = ast.parse(source)
    for rows, edit, indent in reversed(_places(tree, edits, lines, file)):
        lines[rows] = _replacement(edit.put, lines[rows], indent)
    after = "\n".join(lines)
    try:
        compile(after, file, "exec", dont_inherit=True)
    except SyntaxError as error:
        raise BadInput(f"the edited {file} does not compile, line {error.lineno}: {error.msg}") from error
    return after


def _places(
    tree: ast.Module, edits: Sequence[Edit], lines: list[str], file: str
) -> list[tuple[slice, Edit, str]]:
    """Rows, edit and indentation of every match, from top to bottom."""
    found = [(_rows(node, lines, file), edit, node) for edit in edits for node in _matches(edit, tree, file)]
    found.sort(key=lambda place: place[0].start)
    for (above, edit, _), (below, other, _) in itertools.pairwise(found):
        if above.stop > below.start:
            at = f"line {below.start + 1} of {file}"
            raise BadInput(f"edits overlap at {at}: {_short(edit.pattern)} and {_short(other.pattern)}")
    return [(rows, edit, lines[node.lineno - 1][: node.col_offset]) for rows, edit, node in found]


# ---- finding ----


def scope(node: ast.AST) -> Iterator[ast.AST]:
    """Everything within a node, what nested functions and classes hold left out."""
    for child in ast.iter_child_nodes(node):
        yield child
        if not isinstance(child, _SCOPES):
            yield from scope(child)


def trail(tree: ast.Module, edit: Edit, file: str) -> tuple[list[ast.ClassDef], Function]:
    """The classes that lead to the edit's function, outermost first, and the function.

    Raises:
        SourceChanged: one of them is not there, or defined several times.
    """
    *names, last = edit.path
    inside: ast.AST = tree
    classes: list[ast.ClassDef] = []
    for name in names:
        inside = _only(
            [n for n in scope(inside) if isinstance(n, ast.ClassDef) and n.name == name], edit, file
        )
        classes.append(inside)
    return classes, _only(
        [n for n in scope(inside) if isinstance(n, Function) and n.name == last], edit, file
    )


def _only(found: list[T], edit: Edit, file: str) -> T:
    if len(found) == 1:
        return found[0]
    raise SourceChanged(
        f"looked for {'.'.join(edit.path)} in {file}: expected 1 definition, found {len(found)}"
    )


def _matches(edit: Edit, tree: ast.Module, file: str) -> list[ast.stmt]:
    _, function = trail(tree, edit, file)
    inside = [n for n in ast.walk(function) if isinstance(n, ast.stmt) and n is not function]
    found = [node for node in inside if _same(edit.pattern, node)]
    if len(found) == edit.matches:
        return found
    there = found or [node for node in inside if type(node) is type(edit.pattern)]
    raise SourceChanged(
        f"looked for {_short(edit.pattern)} in {edit.where}: expected {edit.matches}, found {len(found)}; "
        f"there {_listed(there, edit.pattern)}"
    )


def _same(pattern: Any, node: Any) -> bool:
    """Whether a part of a statement (a node, a list of nodes or a plain value) fits the pattern's."""
    if isinstance(pattern, ast.Name) and pattern.id == "_":
        return isinstance(node, ast.expr)
    if isinstance(pattern, list):
        return isinstance(node, list) and _same_run(pattern, node)
    if type(pattern) is not type(node):
        return False  # also tells 1 from True
    if isinstance(pattern, ast.AST):
        fields = set(pattern._fields) - {"kind"}  # the u of u"text"
        return all(_same(getattr(pattern, name), getattr(node, name)) for name in fields)
    return bool(pattern == node)


def _same_run(patterns: list[Any], nodes: list[Any]) -> bool:
    if not patterns:
        return not nodes
    first, *rest = patterns
    if _is_gap(first):
        return any(_same_run(rest, nodes[skipped:]) for skipped in range(len(nodes) + 1))
    return bool(nodes) and _same(first, nodes[0]) and _same_run(rest, nodes[1:])


def _is_gap(node: object) -> TypeGuard[ast.Expr]:
    """Whether this is the statement `...`."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and node.value.value is ...


def _short(node: ast.stmt) -> str:
    return f"`{textwrap.shorten(ast.unparse(node), 90, placeholder=' [...]')}`"


def _listed(nodes: list[ast.stmt], pattern: ast.stmt) -> str:
    """At most five statements with their lines, the likest first."""
    if not nodes:
        return f"is no {type(pattern).__name__} statement"
    wanted = _short(pattern)
    nodes = sorted(nodes, key=lambda node: -difflib.SequenceMatcher(None, wanted, _short(node)).ratio())
    more = f", and {len(nodes) - 5} more" if len(nodes) > 5 else ""
    return "are " + ", ".join(f"{_short(node)} (line {node.lineno})" for node in nodes[:5]) + more


# ---- replacing ----


def _rows(node: ast.stmt, lines: list[str], file: str) -> slice:
    """The lines that a statement has to itself, its decorators included."""
    decorators = getattr(node, "decorator_list", [])
    start = min(part.lineno for part in [node, *decorators]) - 1
    while decorators and not lines[start].lstrip().startswith("@"):
        start -= 1  # `@(` may stand on a line of its own
    assert node.end_lineno is not None
    before = lines[node.lineno - 1][: node.col_offset]
    after = lines[node.end_lineno - 1].encode()[node.end_col_offset :].strip()  # columns count bytes
    is_elif = isinstance(node, ast.If) and lines[node.lineno - 1].lstrip().startswith("elif")
    if before.strip() or (after and not after.startswith(b"#")) or is_elif:
        at = f"line {node.lineno} of {file}"
        raise BadInput(f"{_short(node)} does not have {at} to itself; find the statement around it")
    return slice(start, node.end_lineno)


def _replacement(put: str, original: list[str], indent: str) -> list[str]:
    """The lines of `put` at `indent`, with the original lines where it says `...`."""
    put = textwrap.dedent(put).strip("\n")
    gaps = [node for node in ast.walk(ast.parse(put)) if _is_gap(node)]
    written = put.split("\n")
    if any(written[gap.lineno - 1].partition("#")[0].strip() != "..." for gap in gaps):  # `if x: ...`
        put = ast.unparse(ast.parse(put))  # gives each statement a line
        return _replacement(put, original, indent)
    lines = _shifted(written, "", indent)
    for gap in sorted(gaps, key=lambda node: -node.lineno):
        column = written[gap.lineno - 1][: gap.col_offset]
        lines[gap.lineno - 1 : gap.lineno] = _shifted(original, indent, indent + column)
    return lines


def _shifted(lines: list[str], old: str, new: str) -> list[str]:
    """The lines moved from one indentation to another. Lines within a string stay: they are its value."""
    kept = _within_strings(lines)
    return [
        new + line[len(old) :] if line.strip() and line.startswith(old) and row not in kept else line
        for row, line in enumerate(lines)
    ]


def _within_strings(lines: list[str]) -> set[int]:
    """The rows that begin inside a string, an f-string included."""
    kept: set[int] = set()
    opened: list[int] = []
    for token in tokenize.generate_tokens(io.StringIO("\n".join(lines)).readline):
        kind, first, last = tokenize.tok_name[token.type], token.start[0], token.end[0]
        if kind == "FSTRING_START":  # from Python 3.12 on, an f-string is many tokens
            opened.append(first)
        elif kind in ("STRING", "FSTRING_END"):
            kept.update(range(opened.pop() if kind == "FSTRING_END" else first, last))
    return kept
