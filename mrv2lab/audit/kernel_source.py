"""What a Triton kernel does with each pointer it is given, read from its source.

A small interpretation of the syntax tree: every local name carries the parameters it was computed from.
`tl.load(p + i)` yields a value *loaded* from `p`; an address or a loop bound that is computed from such a
value makes `p` an index. Where the source does not say, every pointer counts as written.
"""

import ast
import functools
import inspect
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

_STORES = {"store", "atomic_add", "atomic_cas", "atomic_xchg", "atomic_max", "atomic_min", "atomic_and",
           "atomic_or", "atomic_xor"}  # fmt: skip
_HARMLESS = {"load", "program_id", "num_programs", "arange", "range", "cdiv", "full", "zeros", "where"}

Tags = frozenset[tuple[str, str]]  # pairs of `from` or `loaded`, and a parameter


@dataclass(frozen=True)
class Use:
    """Parameters of a kernel by what is done with them."""

    written: frozenset[str]  # it may store there
    indexes: frozenset[str]  # what it loads from there decides where it reads or writes, or how often
    # for each parameter and each place where it is mentioned, the parameters that must be true for the kernel
    # to come there
    mentions: dict[str, list[frozenset[str]]] | None = None

    def touches(self, parameter: str, given: dict[str, Any]) -> bool:
        """Whether a launch with these arguments comes to a place where a parameter is mentioned. One that
        stands only under `if HAS_BIAS:` is given something for form's sake where there is no bias."""
        if self.mentions is None:
            return True
        return any(all(given.get(g, True) for g in guards) for guards in self.mentions.get(parameter, ()))


def of_launch(kernel: Any) -> tuple[str, Sequence[str], Use]:
    """Name, parameters and use of what is launched. The source of a kernel that Inductor wrote is gone; its
    names tell what is only read, and any integer there may be an index."""
    if hasattr(kernel, "arg_names"):
        return kernel.fn.__name__, kernel.arg_names, use_of(kernel.fn)
    parameters = kernel.fn.arg_names  # of a `CachingAutotuner`
    read = frozenset(name for name in parameters if name.startswith("in_ptr"))
    return kernel.fn.__name__, parameters, Use(frozenset(parameters) - read, read)


@functools.cache
def use_of(fn: Callable[..., Any]) -> Use:
    """What the kernel written as `fn` does with its parameters."""
    parameters = frozenset(inspect.signature(fn).parameters)
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(fn))).body[0]
    except (OSError, SyntaxError):
        return Use(parameters, frozenset())
    reader = _Reader(parameters)
    before: dict[str, Tags] = {}
    while before != reader.tags:  # loops carry values round
        before = dict(reader.tags)
        reader.visit(tree)
    mentions: dict[str, list[frozenset[str]]] = {}
    for statement in tree.body if isinstance(tree, ast.FunctionDef) else []:
        _mention(statement, parameters, frozenset(), mentions)
    return Use(frozenset(reader.written), frozenset(reader.indexes), mentions)


def _mention(
    node: ast.AST, parameters: frozenset[str], guards: frozenset[str], found: dict[str, list[frozenset[str]]]
) -> None:
    if isinstance(node, ast.Name) and node.id in parameters:
        found.setdefault(node.id, []).append(guards)
    is_guarded = isinstance(node, ast.If | ast.IfExp) and getattr(node.test, "id", None) in parameters
    for name, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                more = {node.test.id} if is_guarded and name == "body" else set()  # type: ignore[attr-defined]
                _mention(child, parameters, guards | more, found)


class _Reader(ast.NodeVisitor):
    def __init__(self, parameters: frozenset[str]):
        self.tags: dict[str, Tags] = {name: frozenset({("from", name)}) for name in parameters}
        self.written: set[str] = set()
        self.indexes: set[str] = set()

    def _of(self, node: ast.AST | None) -> Tags:
        """What an expression was computed from."""
        if node is None:
            return frozenset()
        if isinstance(node, ast.Name):
            return self.tags.get(node.id, frozenset())
        if isinstance(node, ast.Call) and _name(node) == "load":
            return frozenset(("loaded", name) for _, name in self._of(_first(node)))
        parts = [self._of(child) for child in ast.iter_child_nodes(node)]
        return frozenset().union(*parts)

    def visit(self, node: ast.AST) -> None:
        match node:
            case ast.Call():
                self._call(node)
            case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Tuple(elts=values)):
                for target, value in zip(targets, values, strict=False):
                    self._bind(target, self._of(value))
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    self._bind(target, self._of(value))
            case ast.AugAssign(target=target, value=value) | ast.For(target=target, iter=value):
                self._bind(target, self._of(value))
        self.generic_visit(node)

    def _call(self, node: ast.Call) -> None:
        name, given = _name(node), [tag for argument in node.args for tag in self._of(argument)]
        if name in _STORES or name == "load":
            address = self._of(_first(node))
            self.indexes |= {parameter for how, parameter in address if how == "loaded"}
            if name in _STORES:
                self.written |= {parameter for how, parameter in address if how == "from"}
        elif name == "range":
            self.indexes |= {parameter for how, parameter in given if how == "loaded"}
        elif isinstance(node.func, ast.Name) and name not in _HARMLESS:  # a device function: it may store
            self.written |= {parameter for how, parameter in given if how == "from"}

    def _bind(self, target: ast.expr, tags: Tags) -> None:
        for name in (part for part in ast.walk(target) if isinstance(part, ast.Name)):
            self.tags[name.id] = self.tags.get(name.id, frozenset()) | tags


def _first(node: ast.Call) -> ast.AST | None:
    return node.args[0] if node.args else next((k.value for k in node.keywords if k.arg == "pointer"), None)


def _name(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
