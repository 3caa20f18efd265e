"""The host values that a statement depends on, and their values, without running any code of the user's.

An atom is a name, or a chain of attributes and subscripts behind a name: `meta.have_initialized`,
`lens[0]`, `config.get("n")`, `len(queue)`. Its value is looked up in instance dictionaries, cells and
globals; a property or a call is never run, so looking changes nothing.
"""

import ast
import ctypes
import functools
import linecache
import os
import threading
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, replace
from enum import Enum
from itertools import islice
from types import BuiltinFunctionType, CodeType, FrameType, ModuleType, SimpleNamespace
from typing import Any
from weakref import WeakKeyDictionary, WeakSet, WeakValueDictionary

import numpy as np
import torch

from mrv2lab.graphs.base import set_within
from mrv2lab.graphs.memory import is_marked

MISSING = object()
_MOST_ATOMS = 16  # of one statement
_FEW = 16  # elements of a container or host tensor that are looked at one by one
SCALARS = (type(None), bool, int, float, complex, str)
_GET = "get()"  # stands for what a ContextVar holds


class Described(str):
    """Words for a value that cannot be kept."""

    truth: bool | None  # what `bool` says of the value; None where that takes code of the user's
    is_exact: bool  # equal values have equal words, and no others have

    def __new__(cls, words: str, truth: bool | None = None, *, is_exact: bool = False) -> "Described":
        found = super().__new__(cls, words)
        found.truth, found.is_exact = truth, is_exact
        return found


class Elements(tuple[Any, ...]):
    """The elements of an array. It is compared element by element, unlike a tuple."""


@dataclass(frozen=True)
class Atom:
    """A host value as the source writes it. What stands behind `get` in a dictionary is an element of it, and
    what a ContextVar holds an attribute."""

    text: str  # its source
    name: str  # the variable it begins with
    # what follows: `.attribute` or a subscript, each as (is_attribute, key)
    steps: tuple[tuple[bool, Any], ...]
    is_len: bool  # the atom is the length of what it leads to
    is_state: bool  # it outlives the function: an attribute, an element, a global, a closure's variable
    default: Any = MISSING  # what its source gives where nothing is at the end of it
    is_there: bool = False  # the atom is whether there is something
    is_late: bool = False  # a variable that is bound while its line runs

    def is_of(self, path: str) -> bool:
        """Whether a path of `names` may be that of its very value."""
        return self.is_state and (path.endswith(self._way) if self.steps else path == self.text)

    def leads_to(self, path: str) -> bool:
        """Whether a path of `names` may be that of its value, or of a part: a variable has many names."""
        if self.is_of(path):
            return True
        parts = f"{self._way}[", f"{self._way}."
        is_part = any(part in path for part in parts) if self.steps else path.startswith(parts)
        return self.is_state and is_part

    @property
    def _way(self) -> str:
        """From its variable on, which has other names elsewhere; of a variable alone its name."""
        return self.text[len(self.name) :] if self.steps else self.text

    def value(self, frame: FrameType, names: dict[str, Any]) -> Any:
        """What it is now, summed up so that it can be kept and compared; MISSING if it cannot be told."""
        found = names[self.name] if self.name in names else frame.f_globals.get(self.name, MISSING)
        owner, is_attribute, key = found, True, None
        for is_attribute, key in self.steps:
            if found is MISSING:
                return MISSING
            if isinstance(key, Atom):
                key = key.value(frame, names)
            owner, found = found, attribute(found, key) if is_attribute else element(found, key)
        if found is MISSING:
            is_known = (self.is_there or self.default is not MISSING) and _lacks(owner, is_attribute, key)
            return MISSING if not is_known else False if self.is_there else self.default
        if self.is_there:
            return True
        if self.is_len:
            return len(found) if getattr(type(found), "__len__", None) in _LENGTHS else MISSING
        return summary(found)


# Of others it would run code of the user's.
_SIZED = (list, tuple, dict, set, frozenset, deque, str, bytes, range)
_LENGTHS = {one.__len__ for one in (*_SIZED, WeakSet, WeakKeyDictionary, WeakValueDictionary)}


def _is(value: Any, kind: Any) -> bool:
    """As isinstance, which asks a proxy what it stands for: that would run code of the user's."""
    return issubclass(type(value), kind)


def attribute(owner: Any, name: str) -> Any:
    """An attribute that is stored, not computed; MISSING otherwise."""
    if name == "__class__":
        return type(owner)
    if name == "__dict__":
        return _dict_of(owner)
    if name == _GET:
        with suppress(LookupError):
            return owner.get() if type(owner) is ContextVar else MISSING
        return MISSING
    if _is(owner, torch.Tensor) and name in ("shape", "dtype", "ndim", "is_cuda"):
        with torch._C.DisableTorchFunction():
            return getattr(owner, name)
    stored = _dict_of(owner)
    if name in stored:
        return stored[name]
    if _is(owner, torch.nn.Module):
        for table in ("_parameters", "_buffers", "_modules"):
            if name in stored.get(table, ()):
                return stored[table][name]
    classes = (owner if _is(owner, type) else type(owner)).__mro__
    found = next((cls.__dict__[name] for cls in classes if name in cls.__dict__), MISSING)
    kind = type(found).__name__
    if kind in ("member_descriptor", "_tuplegetter") and not _is(owner, type):
        return getattr(owner, name, MISSING)
    return MISSING if hasattr(type(found), "__get__") and kind != "function" else found


def _dict_of(owner: Any) -> dict[str, Any]:
    # A look would run an `__init__` of its own.
    is_local = _is(owner, threading.local) and type(owner).__init__ is object.__init__
    try:
        found = (threading.local if is_local else object).__getattribute__(owner, "__dict__")
    except AttributeError:
        return {}
    return dict(found) if not isinstance(found, dict) else found


def element(owner: Any, key: Any) -> Any:
    if _is(owner, torch.Tensor):
        values = host_values(owner) if _plays_host(owner) else None
        owner = values if values is not None and owner.dim() == 1 else None
    if type(owner) in (torch.nn.ModuleList, torch.nn.ModuleDict):
        owner = [*owner._modules.values()] if type(owner) is torch.nn.ModuleList else owner._modules
    is_row = _is(owner, np.ndarray) and owner.dtype != object and owner.ndim == 1
    if type(key) is int and (is_row or type(owner) in (list, tuple, deque)):
        return owner[key] if -len(owner) <= key < len(owner) else MISSING
    if owner is os.environ:
        return os.environ.get(key, MISSING)
    if _is(owner, dict) and isinstance(key, SCALARS):
        return dict.get(owner, key, MISSING)
    return MISSING


_STORED: tuple[Any, ...] = (object.__getattribute__, SimpleNamespace.__getattribute__)


def _lacks(owner: Any, is_attribute: bool, key: Any) -> bool:
    """Whether something that is not stored is not computed either."""
    kind = type(owner)
    if not is_attribute:
        is_plain = owner is os.environ or (_is(owner, dict) and kind.get is dict.get)
        return is_plain and isinstance(key, SCALARS)
    if _is(owner, ModuleType | type) or kind.__getattribute__ not in _STORED:
        return False
    hooks: list[Any] = [vars(cls)["__getattr__"] for cls in kind.__mro__ if "__getattr__" in vars(cls)]
    is_plain = all(hook is torch.nn.Module.__getattr__ for hook in hooks)
    return is_plain and not any(key in vars(cls) for cls in kind.__mro__)


def summary(value: Any) -> Any:
    """A value that can be kept: scalars as they are, small containers of scalars, else type and length."""
    if _is(value, SCALARS):
        return value
    if _is(value, Enum):
        return Described(str(value), _is_true(value), is_exact=True)
    if _is(value, np.generic):
        return value.item()
    if _is(value, np.ndarray):
        if value.size <= _FEW:
            return Elements(value.ravel().tolist())
        is_large = value.dtype == object or value.nbytes > 1 << 16
        digest = "" if is_large else f", contents {hash(value.tobytes()) & 0xFFFF:04x}"
        return Described(f"array of shape {value.shape}{digest}")
    if _is(value, torch.Tensor):
        values = host_values(value) if _plays_host(value) else None
        if values is None:
            return Described("a device tensor")
        return values[0] if len(values) == 1 else Elements(values)
    if _is(value, torch.dtype | torch.device | torch.Size):
        return Described(str(value), is_exact=True)
    if _is(value, slice | range) and all(_is(n, SCALARS) for n in (value.start, value.stop, value.step)):
        return Described(str(value), _is(value, slice) or len(value) > 0, is_exact=True)
    if type(value) in (list, tuple, set, deque):
        plain = len(value) <= _FEW and all(isinstance(item, SCALARS) for item in value)
        return tuple(value) if plain else Described(f"{type(value).__name__} of length {len(value)}", True)
    if _is(value, dict):
        num_items, items = dict.__len__(value), dict.items(value)
        plain = num_items <= _FEW and all(isinstance(part, SCALARS) for item in items for part in item)
        return Described(str(dict(items)) if plain else f"dict of length {num_items}", bool(num_items))
    named = None
    with suppress(Exception):
        has_class = not _is(value, BuiltinFunctionType)  # what torch has of C++ would be named by its table
        named = getattr(value, "__qualname__" if has_class else "__name__", None) if callable(value) else None
    return Described(named if isinstance(named, str) else f"a {type(value).__qualname__}", _is_true(value))


def _is_true(value: Any) -> bool | None:
    """An object without a say in it is true."""
    asked = any(name in vars(cls) for cls in type(value).__mro__ for name in ("__bool__", "__len__"))
    return None if asked else True


_cpu_is_host: ContextVar[bool] = ContextVar("cpu_is_host", default=False)


def cpu_is_host(yes: bool) -> AbstractContextManager[None]:
    """Say for a pass whether every CPU tensor lies in host memory, or only those that `graphs.host` marks."""
    return set_within(_cpu_is_host, yes)


def _plays_host(tensor: torch.Tensor) -> bool:
    with torch._C.DisableTorchFunction():
        return tensor.device.type == "cpu" and (_cpu_is_host.get() or is_marked(tensor))


def host_values(tensor: torch.Tensor) -> list[Any] | None:
    """The elements of a small CPU tensor, read where they lie: no op is called. None if that cannot be."""
    with torch._C.DisableTorchFunction():
        if tensor.device.type != "cpu" or not 0 < tensor.numel() <= _FEW or not tensor.is_contiguous():
            return None
        try:
            dtype = np.dtype(str(tensor.dtype).removeprefix("torch."))
        except TypeError:  # bfloat16 and the like, which numpy has not
            return None
        memory = (ctypes.c_byte * (tensor.numel() * dtype.itemsize)).from_address(tensor.data_ptr())
    values: list[Any] = np.frombuffer(bytes(memory), dtype).tolist()
    return values


# ---- from source to atoms ----


def atoms_at(code: CodeType, line: int) -> tuple[Atom, ...]:
    """The atoms of the statements at a line: of the head only, if one is a compound statement.

    Where a statement uses a local variable that its function assigns once, the atoms of that
    assignment follow: they say where the value comes from.
    """
    return _atoms_at(code.co_filename, code, line)


@functools.cache  # code of two files may be equal
def _atoms_at(file: str, code: CodeType, line: int) -> tuple[Atom, ...]:
    statements = statements_at(file, line)
    found: dict[str, Atom] = {}
    assigned = assigned_at(file, line)
    expressions: list[tuple[ast.AST, int]] = [(part, 0) for s in statements for part in heads(s)]
    late = {name for expression, _ in expressions for name in _bound_in(expression)}
    late.update(name for statement in statements[:-1] for name in _bound_by(statement))
    while expressions:
        expression, depth = expressions.pop(0)
        for atom in atoms_in(expression, code):
            if atom.text in found or len(found) >= _MOST_ATOMS:
                continue
            found[atom.text] = replace(atom, is_late=True) if atom.name in late and not atom.steps else atom
            if atom.name in assigned and depth < 3 and not atom.steps:
                expressions.append((assigned[atom.name], depth + 1))
    return tuple(found.values())


def _bound_in(expression: ast.AST) -> Iterator[str]:
    """Variables that are bound while it runs: when its line begins they hold what the last turn left."""
    for node in ast.walk(expression):
        match node:
            case ast.comprehension(target=target) | ast.NamedExpr(target=target):
                yield from (n.id for n in ast.walk(target) if isinstance(n, ast.Name))


def _bound_by(statement: ast.stmt) -> Iterator[str]:
    """Variables that a statement binds before another one on its line runs."""
    match statement:
        case ast.For(target=target) | ast.AugAssign(target=target) | ast.AnnAssign(target=target):
            targets = [target]
        case _:
            targets = getattr(statement, "targets", [])
    yield from (n.id for one in targets for n in ast.walk(one) if isinstance(n, ast.Name))


def heads(statement: ast.stmt) -> list[ast.AST]:
    """The expressions that run at the statement's own line."""
    match statement:
        case ast.If(test=head) | ast.While(test=head) | ast.For(iter=head) | ast.Match(subject=head):
            return [head]
        case ast.With(items=items):
            return [item.context_expr for item in items]
        case ast.Assign(targets=targets, value=value):
            return [value, *(t for t in targets if not isinstance(t, ast.Name))]
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef() | ast.Try():
            return []
    return [statement]


def atoms_in(expression: ast.AST, code: CodeType) -> list[Atom]:
    """Every longest atom in an expression, from left to right."""
    if isinstance(expression, ast.Call):
        inner: list[Atom] = []
        is_len = isinstance(expression.func, ast.Name) and expression.func.id == "len" and expression.args
        if is_len and (a := _atom(expression.args[0], code)):
            inner = [Atom(f"len({a.text})", a.name, a.steps, True, a.is_state)]
        if not inner:
            callee, got = expression.func, _atom(expression, code)
            owner = callee.value if isinstance(callee, ast.Attribute) else callee
            # What an attribute holds may be exchanged as well: an activation, a layer.
            held = None if owner is callee else _atom(callee, code)
            inner = [*filter(None, (got, *atoms_in(owner, code), held))]
        arguments = [*expression.args, *(keyword.value for keyword in expression.keywords)]
        return inner + [atom for part in arguments for atom in atoms_in(part, code)]
    if (atom := _atom(expression, code)) is not None:
        keys = [part.slice for part in ast.walk(expression) if isinstance(part, ast.Subscript)]
        calls = [part for part in ast.walk(expression) if isinstance(part, ast.Call)]
        gets = [call for call in calls if isinstance(call.func, ast.Attribute)]
        return [atom, *(inner for part in [*keys, *gets] for inner in atoms_in(part, code))]
    return [atom for part in ast.iter_child_nodes(expression) for atom in atoms_in(part, code)]


def _atom(node: ast.AST, code: CodeType) -> Atom | None:
    steps: list[tuple[bool, Any]] = []
    current = node
    while True:
        match current:
            case ast.Attribute(value=owner, attr=name):
                steps.append((True, name))
            case ast.Call(func=ast.Attribute(value=owner, attr="get"), args=[], keywords=[]):
                steps.append((True, _GET))
            case ast.Call(
                func=ast.Name(id="getattr" | "hasattr"),
                args=[owner, ast.Constant(value=str() as name), *_],
                keywords=[],
            ):
                steps.append((True, name))
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id="os") as owner, attr="getenv"),
                args=[ast.Constant(value=str() as name), *_],
                keywords=[],
            ):
                steps += [(False, name), (True, "environ")]
            case (
                ast.Subscript(value=owner, slice=key)
                | ast.Call(func=ast.Attribute(value=owner, attr="get"), args=[key, *_], keywords=[])
            ):
                inner = key.value if isinstance(key, ast.Constant) else _atom(key, code)
                if inner is None and not isinstance(key, ast.Constant):
                    return None
                steps.append((False, inner))
            case _:
                break
        current = owner
    match current:  # what a class holds, asked of its type
        case ast.Call(func=ast.Name(id="type"), args=[ast.Name() as current]) if steps:
            steps.append((True, "__class__"))
    if not isinstance(current, ast.Name):
        return None
    is_local = current.id in code.co_varnames or current.id in code.co_cellvars
    is_state, ways = bool(steps) or not is_local, tuple(reversed(steps))
    return Atom(ast.unparse(node), current.id, ways, False, is_state, *_where_nothing_is(node))


def _where_nothing_is(node: ast.AST) -> tuple[Any, bool]:
    """What a way to a value gives where it leads to none, MISSING if that cannot be told; and whether it only
    asks for that."""
    match node:
        case ast.Call(func=ast.Name(id="hasattr")):
            return MISSING, True
        case ast.Call(func=ast.Name(id="getattr"), args=[_, _, ast.Constant(value=default)]):
            return default, False
        case ast.Call(func=ast.Attribute(attr="get" | "getenv"), args=[_]):
            return None, False
        case ast.Call(func=ast.Attribute(attr="get" | "getenv"), args=[_, ast.Constant(value=default)]):
            return default, False
    return MISSING, False


def forget_sources() -> None:
    """Read source files anew where one of them has changed, as by %autoreload."""
    known = len(linecache.cache)
    linecache.checkcache()
    if len(linecache.cache) < known:
        for kept in (_atoms_at, _statements, expression_at, function_at, assigned_at):
            kept.cache_clear()


@functools.cache
def _statements(file: str) -> dict[int, list[ast.stmt]]:
    """For each line of a file the statements that begin to run there, outer ones first. Of a compound
    statement only the head counts; `if flag: return` has two statements on its line."""
    found: dict[int, list[ast.stmt]] = {}
    try:
        module = ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:
        return found
    for node in ast.walk(module):
        if isinstance(node, ast.stmt):
            body = getattr(node, "body", None)
            last = max(node.lineno, body[0].lineno - 1) if body else node.end_lineno or node.lineno
            for line in range(node.lineno, last + 1):
                found.setdefault(line, []).append(node)
    return found


@functools.cache
def expression_at(file: str, code: CodeType, line: int, spot: int) -> ast.expr | None:
    """The expression of a statement to which an instruction belongs, by its offset; None where the code does
    not tell, and of what stores: what is stored stands beside it."""
    span = next(islice(code.co_positions(), spot // 2, None), None) if spot >= 0 else None
    nodes = (n for one in statements_at(file, line) for n in ast.walk(one) if isinstance(n, ast.expr))
    node = next((node for node in nodes if span in [*_spans(node)]), None)
    return node if isinstance(getattr(node, "ctx", ast.Load()), ast.Load) else None


def _spans(node: ast.expr) -> Iterator[tuple[int, int | None, int, int | None]]:
    """As the compiler may give it to the last instruction: the lines, and where in them. The call of a method
    begins at its name where that stands on a line of its own, unless an argument is unpacked."""
    yield node.lineno, node.end_lineno, node.col_offset, node.end_col_offset
    match node:
        case ast.Call(func=ast.Attribute(attr=name, end_lineno=int(line), end_col_offset=int(column))):
            yield line, node.end_lineno, column - len(name), node.end_col_offset


def statements_at(file: str, line: int) -> list[ast.stmt]:
    """The statements at a line, outer ones first; empty where there is no source."""
    return _statements(file).get(line, [])


@functools.cache
def function_at(file: str, line: int) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    """The innermost function whose body covers a line."""
    above = (node for at in range(line, 0, -1) for node in statements_at(file, at))
    functions = (node for node in above if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return next((node for node in functions if line <= (node.end_lineno or 0)), None)


@functools.cache
def assigned_at(file: str, line: int) -> dict[str, ast.expr]:
    """What the local variables of the function at a line are assigned, if that is done only once, and not of
    themselves."""
    function = function_at(file, line)
    nodes = list(ast.walk(function)) if function else []
    outer = {name for n in nodes if isinstance(n, ast.Global | ast.Nonlocal) for name in n.names}
    bound = Counter(n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))
    bound.update(node.arg for node in nodes if isinstance(node, ast.arg))
    found: dict[str, ast.expr] = {}
    for node in nodes:
        match node:
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=value)
                | ast.NamedExpr(target=ast.Name(id=name), value=value)
            ) if bound[name] == 1:
                if not any(isinstance(n, ast.Name) and n.id == name for n in ast.walk(value)):
                    found[name] = value
    return {name: value for name, value in found.items() if name not in outer}
