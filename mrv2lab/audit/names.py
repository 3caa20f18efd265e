"""What a tensor is called: the path to it from a step, or from the functions that are running."""

import ast
import contextlib
import functools
import inspect
import random
import re
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, ItemsView, Iterable, Iterator, Mapping, ValuesView
from contextvars import ContextVar
from dataclasses import dataclass
from enum import Enum
from functools import partial
from itertools import accumulate
from operator import itemgetter
from types import (
    BuiltinFunctionType,
    CodeType,
    FrameType,
    FunctionType,
    MappingProxyType,
    MethodType,
    ModuleType,
)
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary, WeakValueDictionary

import numpy as np
import torch

from mrv2lab.audit.atoms import MISSING, SCALARS, Described, attribute, element
from mrv2lab.audit.lines import is_users, users_running
from mrv2lab.audit.memory import has_memory, storage_of
from mrv2lab.graphs.base import CapturedGraph
from mrv2lab.graphs.memory import storage_or_none

T = TypeVar("T")
_MOST_OBJECTS = 50_000
_MOST_OF_FRAME = 2000  # objects
_MOST_ELEMENTS = 1024  # of one container, where functions that are running are looked at
_OF_A_GRAPH = re.compile(r"\.num_replays$").search  # what the emulator counts in a graph
_PLACED = re.compile(r" at 0x[0-9a-f]+").search  # what `repr` says of an object that has none of its own
_SMALLEST = 1 << 16  # address that a system lends
READ = "read"  # what a caller reads of Python's objects is called, where it is one value
PLAIN = (
    str, bytes, int, float, complex, type(None), set, frozenset, range, slice, Enum, np.generic, np.ndarray,
    torch.dtype, torch.device,
)  # fmt: skip
"""What a step may return beside tensors."""
_LEAVES = (
    *PLAIN, type, CodeType, torch.cuda.Stream, torch.cuda.Event, torch.Generator, random.Random,
    np.random.Generator, np.random.RandomState,
)  # fmt: skip


def roots(step: Any) -> dict[str, Any]:
    """What a callable can reach at once, by the names that its source uses."""
    if isinstance(step, functools.partial):
        try:
            bound = inspect.signature(step.func).bind_partial(*step.args, **step.keywords).arguments
        except (TypeError, ValueError):
            bound = {f"args[{i}]": value for i, value in enumerate(step.args)} | step.keywords
        return roots(step.func) | dict(bound)
    if isinstance(step, MethodType):
        return roots(step.__func__) | {"self": step.__self__}
    if isinstance(step, FunctionType):
        return _of_function(step)
    called = vars(type(step)).get("__call__")
    return (_of_function(called) if isinstance(called, FunctionType) else {}) | {"self": step}


def _of_function(function: FunctionType) -> dict[str, Any]:
    found, used = dict[str, Any](), {*_global_names(function.__code__)}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # not bound yet
            found[name] = cell.cell_contents
    for name in _global_names(function.__code__):
        if name in function.__globals__:
            found.setdefault(name, function.__globals__[name])
    for name, value in list(found.items()):
        if issubclass(type(value), ModuleType | type):  # too much to look at all of it
            held = {at: vars(value)[at] for at in used & vars(value).keys()}
            found |= {
                f"{name}.{at}": item.__func__ if type(item) in _OF_CLASSES else item
                for at, item in held.items()
            }
    arguments = function.__code__.co_varnames[: function.__code__.co_argcount]
    found |= dict(zip(reversed(arguments), reversed(function.__defaults__ or ()), strict=False))
    return found | (function.__kwdefaults__ or {})


def _global_names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _global_names(constant)


@dataclass(frozen=True)
class Reachable:
    """As `roots`, asked anew each time: a step may bind its names to other objects."""

    step: Any

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        return iter(roots(self.step).items())


Named = Mapping[str, Any] | Reachable  # objects by name


def walk(named: Named, most: int = _MOST_OBJECTS) -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor that can be reached from these objects, with its path, the shortest paths first. Those
    that a compiler leaves behind are fake."""
    for path, value in leaves(named, most, SCALARS):
        # not isinstance: it asks a proxy what it stands for
        if (
            issubclass(type(value), torch.Tensor)
            and type(value).__name__ != "FakeTensor"
            and has_memory(value)
        ):
            yield path, value


def plain(named: Named) -> dict[str, Any]:
    """Numbers and texts that can be reached from these objects, by path."""
    values = leaves(named)
    return {path: value for path, value in values if type(value) in SCALARS and not _OF_A_GRAPH(path)}


def leaves(
    named: Named,
    most: int = _MOST_OBJECTS,
    skipped: tuple[type, ...] = (),
    left_out: list[str] | None = None,
    again: dict[str, str] | None = None,
    code: bool = False,
) -> Iterator[tuple[str, Any]]:
    """Every tensor and graph, and whatever has no parts, that can be reached from these objects, with its
    path, but for the types `skipped`. Of more objects than `most` the first one's path is `left_out`. An
    object that is met `again` is not gone into: its path then, with that of the first time. Where `code` is
    asked for, what a call runs comes too, under a path that ends with `()`, and what a container holds in
    which order, with `{}`."""
    queue = deque(dict(named).items())
    seen: dict[int, tuple[Any, str]] = {}  # kept: another object may get the number of one that is gone
    of_class = functools.cache(_of_class)  # for this walk: classes change
    of_methods: Callable[[Any], dict[str, Any]] = functools.cache(_of_methods)
    has_methods = isinstance(named, Reachable)
    while queue and len(seen) < most:
        path, value = queue.popleft()
        if issubclass(type(value), torch.Tensor):
            yield path, value
            with contextlib.suppress(Exception):
                if (value.is_leaf or value.retains_grad) and value.grad is not None:
                    queue.append((f"{path}.grad", value.grad))
                queue.extend((f"{path}.{name}", item) for name, item in vars(value).items())
            continue
        is_of_objects = issubclass(type(value), np.ndarray) and value.dtype.hasobject
        if issubclass(type(value), (*_LEAVES, ModuleType)) and not is_of_objects:
            yield path, value
            continue
        if id(value) in seen:
            if again is not None:
                again[path] = seen[id(value)][1]
            continue
        seen[id(value)] = value, path
        if code:
            yield from _runs(path, value)
        if type(value) in (list, tuple) and all(type(item) in skipped for item in value):
            continue  # tokens, by the million
        if issubclass(type(value), CapturedGraph):
            yield path, value  # and what it holds
        if issubclass(type(value), Iterator) and not hasattr(value, "__dict__"):
            yield path, value  # to look into it would use it up
            continue
        with contextlib.suppress(Exception):  # an object that does not let itself be looked at
            children = _children(path, value, None if most == _MOST_OBJECTS else _MOST_ELEMENTS, of_class)
            queue.extend((at, item) for at, item in children if type(item) not in skipped)
            if has_methods:
                queue.extend(of_methods(type(value)).items())
    if queue and left_out is not None:
        left_out.append(queue[0][0])


def _runs(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """What runs where a function is called, or where a step goes through a container."""
    if issubclass(type(value), FunctionType | BuiltinFunctionType | MethodType):
        yield f"{path}()", getattr(getattr(value, "__func__", value), "__code__", value)
    elif issubclass(type(value), _ARRANGED):
        if issubclass(type(value), torch.nn.Module) and "forward" not in vars(value):
            forward = getattr(type(value).forward, "__code__", None)  # its class may get another one
            if forward is not None and not type(value).__module__.startswith("torch."):
                yield f"{path}.forward()", forward
        # What TorchScript has in its place is no dict.
        held = dict(value._modules.items()) if issubclass(type(value), torch.nn.Module) else value
        has_keys = issubclass(type(held), dict)
        items = list(held.items() if has_keys else ((0, item) for item in held))[:_MOST_ELEMENTS]
        # A hook has another number each time it is added.
        has_names = has_keys and not path.endswith("_hooks")
        told = [(str(key) * has_names, _sort_of(item)) for key, item in items]
        if not told or any(map(any, told)):  # numbers are told one by one
            yield (
                f"{path}{{}}",
                Described(", ".join(": ".join(filter(None, two)) for two in told) or "nothing"),
            )


def _sort_of(item: Any) -> str:
    return "" if issubclass(type(item), (torch.Tensor, *PLAIN)) else type(item).__name__


def _children(
    path: str, value: Any, most: int | None, of_class: Callable[[type], dict[str, Any]]
) -> Iterator[tuple[str, Any]]:
    if isinstance(value, _BY_KEY):
        for i, (key, item) in enumerate(list(value.items())[:most]):
            is_tensor = issubclass(type(key), torch.Tensor)
            # The numbers in a tensor are no name, nor is where an object lies.
            is_nameless = is_tensor or _PLACED(text := repr(key))
            yield f"{path}[{f'<{type(key).__name__} {i}>' if is_nameless else text}]", item
            if is_tensor:
                yield f"{path}.keys()[{i}]", key
    elif isinstance(value, _IN_ORDER):
        names = getattr(type(value), "_fields", None)
        for i, item in enumerate(list(value)[:most]):
            yield (f"{path}.{names[i]}" if names else f"{path}[{i}]"), item
    elif isinstance(value, np.ndarray):
        yield from ((f"{path}[{i}]", item) for i, item in enumerate(value.ravel().tolist()[:most]))
    elif isinstance(value, functools._lru_cache_wrapper):
        yield f"{path}.cache_info()", value.cache_info().currsize
        yield path, value.__wrapped__
    elif isinstance(value, functools.partial):
        yield f"{path}.func", value.func
        yield from ((f"{path}.args[{i}]", item) for i, item in enumerate(value.args))
        yield from ((f"{path}.keywords[{key!r}]", item) for key, item in value.keywords.items())
    elif isinstance(value, MethodType):
        yield from roots(value.__func__).items()
        yield f"{path}.__self__", value.__self__
    elif isinstance(value, FunctionType):
        if is_users(value.__code__):
            yield from _of_function(value).items()
            yield from ((f"{path}.{name}", item) for name, item in vars(value).items())
    elif isinstance(value, BaseException):
        yield f"{path}.args", value.args
    elif isinstance(value, ContextVar):
        with contextlib.suppress(LookupError):  # not set, and no default
            yield f"{path}.get()", value.get()
    if type(value) not in _WITHOUT_ATTRIBUTES:
        yield from _attributes(path, value, of_class)


def _attributes(
    path: str, value: Any, of_class: Callable[[type], dict[str, Any]]
) -> Iterator[tuple[str, Any]]:
    """Those of an object, and of its class. A container may have some beside what it contains."""
    stored, kind = getattr(value, "__dict__", {}), type(value)
    if not isinstance(stored, dict) or f"{kind.__module__}.".startswith(_FOREIGN):
        return
    for name, item in list(stored.items()):
        if name in ("_parameters", "_buffers", "_modules") and isinstance(item, dict):
            for key, member in item.items():
                yield f"{path}[{key}]" if key.isdecimal() else f"{path}.{key}", member
        else:
            yield f"{path}.{name}", item
    for base in kind.__mro__:
        slots = vars(base).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            is_private = name.startswith("__") and not name.endswith("__")
            at = f"_{base.__name__.lstrip('_')}{name}" if is_private else name
            if at not in ("__dict__", "__weakref__") and hasattr(value, at):
                yield f"{path}.{at}", getattr(value, at)
    for name, item in of_class(kind).items():
        if name not in stored:
            yield f"{path}.{name}", item


def _of_class(kind: type) -> dict[str, Any]:
    """What a class of the user's, and those that it is made of, hold for all objects."""
    own = [base for base in reversed(kind.__mro__) if base.__module__.partition(".")[0] not in _LIBRARIES]
    held = {name: item for base in own for name, item in vars(base).items()}
    own_names = (name for name in held if type(held[name]) not in SCALARS or not name.startswith("__"))
    return {name: held[name] for name in own_names if issubclass(type(held[name]), (*_HOLDERS, *SCALARS))}


def _of_methods(kind: type) -> dict[str, Any]:
    """What methods of a class reach beside their object: globals, as those of a function that a step calls.
    A library's are its own business."""
    found: dict[str, Any] = {}
    for base in kind.__mro__ if kind.__module__.partition(".")[0] not in _LIBRARIES else ():
        for item in vars(base).values():
            function = getattr(item, "fget", None) or getattr(item, "__func__", item)
            code = function.__code__ if isinstance(function, FunctionType) else None
            if code and is_users(code) and "site-packages" not in code.co_filename:
                found |= _of_function(function)
    return found


def binder(named: Named, path: str) -> Callable[[Any], object] | None:
    """How to bind what a path of `leaves` leads to to another value, where no code of the user's runs for
    that; None where it does, or where nobody can tell who holds it."""
    with contextlib.suppress(SyntaxError, ValueError, AttributeError):
        known = dict(named)
        match ast.parse(path, mode="eval").body:
            case ast.Name(id=name):
                return _of_a_variable(named, name)
            case ast.Attribute(value=node, attr=name):
                owner = _object(known, node)
                stored = getattr(owner, "__dict__", None)
                if type(stored) is dict and name in stored:
                    return partial(stored.__setitem__, name)
                classes = (owner if isinstance(owner, type) else type(owner)).__mro__
                held = next((one for one in classes if name in vars(one)), None)
                if held is None or owner is MISSING:
                    return None
                if type(vars(held)[name]).__name__ == "member_descriptor":
                    return partial(object.__setattr__, owner, name)
                return None if hasattr(vars(held)[name], "__get__") else partial(type.__setattr__, held, name)
            case ast.Subscript(value=node, slice=key):
                owner, at = _object(known, node), ast.literal_eval(key)
                if type(owner) in (list, dict) and element(owner, at) is not MISSING:
                    return partial(owner.__setitem__, at)
    return None


def _object(known: Mapping[str, Any], node: ast.expr) -> Any:
    """What a path of `leaves` leads to, before its last part; MISSING if that cannot be told."""
    if (path := ast.unparse(node)) in known:
        return known[path]
    match node:
        case ast.Attribute(value=inner, attr=name):
            return attribute(_object(known, inner), name)
        case ast.Subscript(value=inner, slice=key):
            owner, at = _object(known, inner), ast.literal_eval(key)
            is_layer = issubclass(type(owner), torch.nn.Module) and str(at) in owner._modules
            return owner._modules[str(at)] if is_layer else element(owner, at)
    return MISSING


def _of_a_variable(named: Named, name: str) -> Callable[[Any], object] | None:
    """As `binder`, of a global or a closure's variable of a step or of a function that it names."""
    step = getattr(named, "step", None)
    for function in (getattr(step, "__func__", step), *dict(named).values()):
        if isinstance(function, FunctionType):
            cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
            if name in cells:
                return partial(setattr, cells[name], "cell_contents")
            if name in function.__code__.co_names and name in function.__globals__:
                return partial(function.__globals__.__setitem__, name)
    return None


def by_birth(paths: Iterable[tuple[str, int]], born: Iterable[int]) -> dict[str, str]:
    """Names for paths, the same each time, however long the lists are in which new tensors come to lie. With
    each path comes the storage that it leads to; of those `born` the newest is the last."""
    age = {storage: number for number, storage in enumerate(born)}
    groups: dict[str, list[tuple[int, str]]] = {}
    for path, storage in paths:
        groups.setdefault(re.sub(r"\[-?\d+\]", "[*]", path), []).append((age[storage], path))
    return {
        path: f"{name}, {before} before the newest" if before else name
        for name, members in groups.items()
        for before, (_, path) in enumerate(sorted(members, reverse=True))
    }


_ARRANGED = (torch.nn.Module, dict, list, tuple, deque)
_BY_KEY = (dict, MappingProxyType, WeakKeyDictionary, WeakValueDictionary)
_IN_ORDER = (list, tuple, deque, ValuesView, ItemsView)
# Nothing of a user's can lie in an attribute of these, or all of it was told.
_WITHOUT_ATTRIBUTES = {
    *(*_BY_KEY, *_IN_ORDER, FunctionType, MethodType, functools.partial, np.ndarray),
    functools._lru_cache_wrapper,
}
_OF_CLASSES = (staticmethod, classmethod)
_LIBRARIES = ("builtins", "torch", "typing", "collections", "enum", "abc", "functools")
_HOLDERS = (torch.Tensor, list, tuple, deque, dict)
_FOREIGN = (
    "threading.", "logging.", "weakref.", "triton.", "_thread.", "_pytest.",  # which knows all tests
    # What a compiler leaves behind: as much as all else, with fake tensors in it.
    "sympy.", "torch._inductor.", "torch._functorch.", "torch._subclasses.", "torch._guards.",
    "torch.utils._sympy.", "torch.fx.graph.", "torch.fx.node.", "torch.fx.experimental.",
    "mrv2lab.audit.", "mrv2lab.live.",  # what watches an engine hangs on its methods
)  # fmt: skip
_AUDIT = f"{__package__}.driver"


def covers(tensor: torch.Tensor, address: int) -> bool:
    """Whether an address lies in the memory that a tensor is a view of."""
    with torch._C.DisableTorchFunction():
        storage = None if tensor.device.type == "meta" else storage_or_none(tensor)
        return storage is not None and 0 <= address - storage.data_ptr() < storage.nbytes()


def at(tensors: Iterable[tuple[str, torch.Tensor]], address: int) -> tuple[str, torch.Tensor] | None:
    """The first of these whose memory an address lies in, with its path."""
    return next((found for found in tensors if covers(found[1], address)), None)


class Ranges(Generic[T]):
    """What lies in which range of memory, for thousands of addresses to be looked up."""

    def __init__(self, held: Iterable[tuple[range, T]]) -> None:
        self._held = sorted(((one, i, of) for i, (one, of) in enumerate(held)), key=lambda h: h[0].start)
        self._begins = [one.start for one, _, _ in self._held]
        self._reach = [*accumulate((one.stop for one, _, _ in self._held), max)]  # memory may lie in other

    def at(self, address: int) -> T | None:
        """Of the ranges that an address lies in the first, in the order in which they were given."""
        found, i = list[tuple[int, T]](), bisect_right(self._begins, address) - 1
        while i >= 0 and self._reach[i] > address:
            one, order, of = self._held[i]
            found += [(order, of)] if address in one else []
            i -= 1
        return min(found, key=itemgetter(0))[1] if found else None


def by_address(tensors: Iterable[tuple[str, torch.Tensor]]) -> Ranges[tuple[str, torch.Tensor]]:
    """As `at`, for many addresses."""
    held = dict[range, tuple[str, torch.Tensor]]()
    for path, tensor in tensors:
        with torch._C.DisableTorchFunction():
            memory = None if tensor.device.type == "meta" else storage_or_none(tensor)
        if memory is not None:
            begin = memory.data_ptr()
            held.setdefault(range(begin, begin + memory.nbytes()), (path, tensor))
    return Ranges(held.items())


Spans = dict[str, range]  # of memory, by path


def spans(named: Named) -> Spans:
    """The memory of every tensor that can be reached, by path, the shortest paths first."""
    held = ((path, storage_or_none(tensor)) for path, tensor in walk(named))
    return {path: range(s.data_ptr(), s.data_ptr() + s.nbytes()) for path, s in held if s is not None}


def into(known: Spans, address: int) -> str | None:
    """The path to the tensor that an address leads into; to none below what a system lends."""
    if address < _SMALLEST:
        return None
    return next((path for path, span in known.items() if address in span), None)


def as_reached(named: Named) -> Callable[[torch.Tensor], str | None]:
    """What memory is called, as it can be reached when that is first asked. An engine has hundreds of results
    to be named, and each walk through it takes half a second."""
    known = functools.cache(lambda: spans(named))
    return lambda tensor: into(known(), tensor.data_ptr())


def in_frames(address: int, frame: FrameType | None, *, apart_from: int | None = None) -> str | None:
    """A path to the tensor at an address, from a variable of a function of the user's that is running.

    Paths that lead through an object's attributes are preferred: a plain local name says little.
    A tensor whose memory also holds the address `apart_from` is not it. Outside of the audit a library's
    functions, pytest's or Jupyter's, only run whoever asked for it.
    """
    local, inside = None, True
    while frame is not None:
        inside = inside and frame.f_globals.get("__name__") != _AUDIT
        if is_users(frame.f_code) and (inside or "site-packages" not in frame.f_code.co_filename):
            for path, tensor in walk(frame.f_locals, _MOST_OF_FRAME):
                if covers(tensor, address):
                    if apart_from is not None and covers(tensor, apart_from):
                        return None
                    if not path.isidentifier():
                        return path
                    local = local or path
        frame = frame.f_back
    return local


def local(storage: int, frame: FrameType | None) -> str | None:
    """A variable of the innermost running function of the user's: a tensor that begins at this memory."""
    running = users_running(frame)
    held = running.f_locals.items() if running is not None else ()
    tensors = ((name, value) for name, value in held if issubclass(type(value), torch.Tensor))
    return next((name for name, tensor in tensors if storage_of(tensor) == storage), None)


def tensors_of(result: Any, again: dict[str, str] | None = None) -> list[tuple[str, torch.Tensor]]:
    """The tensors in what a step returned, with their paths, and as `leaves` what is met again."""
    found = leaves_of(result, again)
    return [(path, leaf) for path, leaf in found if issubclass(type(leaf), torch.Tensor)]


def leaves_of(result: Any, again: dict[str, str] | None = None) -> list[tuple[str, Any]]:
    """The tensors in what a step returned and what has no parts, with their paths."""
    return list(leaves({"the returned value": result}, again=again))


def step_name(step: Callable[..., Any]) -> str:
    """What a report calls the step."""
    if isinstance(step, functools.partial):
        return step_name(step.func)
    return getattr(step, "__qualname__", type(step).__qualname__)
