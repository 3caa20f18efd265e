"""Triton's interpreter, with what it works out anew for every operation kept.

Its front end, the same that the compiler has, finds out what an operation on such types comes to, and asks a
builder for each part of it; the interpreter's builder computes. For a block of a few rows most of the time
goes into the front end, which decides by types and by what Python knows, and always alike. Here it is asked
once, with nothing where the data would be. What it asks for is kept as a plan, to be followed each time the
operation meets these types. If it wants to see data, or fails, the operation goes Triton's own way.

Like Triton's own wrappers, what stands here is in place only while a kernel is interpreted, whosever it is.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from struct import Struct
from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton.language.semantic import TritonSemantic
from triton.runtime import interpreter
from triton.runtime.interpreter import GridExecutor, InterpreterOptions, TensorHandle, interpreter_builder

# The interpreter would spend 40 % of its time on overflow checks that only speak in debug mode.
interpreter_builder.options = InterpreterOptions(sanitize_overflow=False)

_original_patch_lang, _original_patch_builtin = interpreter._patch_lang, interpreter._patch_builtin
_original_get_np_dtype = interpreter._get_np_dtype
_original_call = GridExecutor.__call__
_original_init_args_hst, _original_restore_args_dev = (
    GridExecutor._init_args_hst,
    GridExecutor._restore_args_dev,
)
_semantic = interpreter.interpreter_semantic
_MAX_PLANS = 4096  # of one operation: each number that Python's loops count makes another one
_MAKING = ("make_range", "splat", "broadcast", "expand_dims", "int_cast", "fp_", "si_to")
_PURE = ("get_", *(f"create_{name}" for name in _MAKING))
_NUMBERS = {int, bool, float, str, type(None)}
_PARTS: dict[type, Callable[[Any], Any]] = {  # of arguments that are no numbers, and no tensors
    list: iter, tuple: iter, slice: lambda it: (it.start, it.stop, it.step),
    tl.constexpr: lambda it: (it.value,), tl.dtype: lambda it: (it.name,),
}  # fmt: skip
_bits = Struct("d").pack
_np_dtypes: dict[str, Any] = {}  # name of Triton's type -> numpy's


@dataclass
class _Handle:
    """What the front end gets for data that a plan is given or computes."""

    text: str  # of the plan
    __bool__ = None  # nobody knows


class _Recorder:
    """What the front end gets for a builder: it writes a plan. What is the same each time is computed now."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.names: dict[str, Any] = {"builder": interpreter_builder, "tl": tl, "new": TensorHandle}

    def __getattr__(self, name: str) -> Any:
        found = getattr(interpreter_builder, name)
        return partial(self._call, name) if callable(found) and not name.endswith("_ty") else found

    def _call(self, method: str, *args: Any) -> Any:
        has_inner = any(isinstance(arg, list | tuple) and not {*map(type, arg)} <= {int} for arg in args)
        if has_inner:  # handles may be in there
            raise LookupError(method)
        if method.startswith(_PURE) and not any(type(arg) is _Handle for arg in args):
            return getattr(interpreter_builder, method)(*args)
        self.lines.append(f"h{len(self.lines)} = builder.{method}({', '.join(map(self.text, args))})")
        return _Handle(f"h{len(self.lines) - 1}")

    def text(self, value: Any) -> str:
        if type(value) is _Handle:
            return value.text
        self.names[name := f"c{len(self.names)}"] = value
        return name


def _planned(member: Callable[..., Any], args: list[Any], names: tuple[str, ...]) -> Any:
    """A function of the arguments that does the same; None where types do not say, or the front end fails."""
    recorder, split = _Recorder(), len(args) - len(names)
    for i, arg in enumerate(args := [*args]):
        if type(arg) is tl.tensor:
            args[i] = tl.tensor(_Handle(f"args[{i}].handle"), arg.type)
    named = dict(zip(names, args[split:], strict=True))
    try:
        result = member(*args[:split], **named, _semantic=TritonSemantic(recorder))
    except Exception:  # Triton's own way raises it again, if it is the kernel's
        return None
    if type(result) is not tl.tensor:
        return None
    rest = vars(result).copy()
    text = recorder.text(handle := rest.pop("handle"))
    if type(handle) is not _Handle:
        text = f"new({text}.data, {text}.dtype)"  # who gets it may change it
    made = f"made = tl.tensor.__new__(tl.tensor)\n made.__dict__.update({recorder.text(rest)}, handle={text})"
    exec("\n ".join(["def plan(args):", *recorder.lines, made, "return made"]), recorder.names)
    return recorder.names["plan"]


def _seen(value: Any) -> Any:
    """All that the front end can see of an argument which is no tensor. KeyError: there may be more to it."""
    kind = type(value)
    if kind in _NUMBERS:  # zero has two signs, and what is no number equals nothing
        return kind, _bits(value) if kind is float else value
    return kind, *map(_seen, _PARTS[kind](value))


@cache
def _kept(member: Callable[..., Any]) -> Callable[..., Any]:
    """An operation of Triton's language, with a plan for each kind of arguments that it has met."""
    plans: dict[Any, Any] = {}
    tensor = tl.tensor

    def operation(*args: Any, **kwargs: Any) -> Any:
        semantic = kwargs.pop("_semantic", _semantic)
        if semantic is not _semantic:  # a part of an operation that is being planned
            return member(*args, **kwargs, _semantic=semantic)
        values, names = [*args, *kwargs.values()], tuple(kwargs)
        try:
            key = names, *[v.type.name if type(v) is tensor else _seen(v) for v in values]
        except KeyError:
            return member(*args, **kwargs, _semantic=semantic)
        if key not in plans:
            if len(plans) == _MAX_PLANS:
                plans.clear()
            plans[key] = _planned(member, values, names)
        plan = plans[key]
        return plan(values) if plan else member(*args, **kwargs, _semantic=semantic)

    return operation


@cache  # what is patched already, around a device function, does not look like one
def _builtins(owner: Any) -> list[tuple[str, Any]]:
    return [(name, _kept(member)) for name, member in inspect.getmembers(owner) if tl.core.is_builtin(member)]


def _patch_builtin(owner: Any, _builder: Any, scope: Any) -> None:
    for name, operation in _builtins(owner):
        scope.set_attr(owner, name, operation)


_scopes: dict[
    tuple[str, ...], list[tuple[Any, str, Any]]
] = {}  # what stands where, by what kernels see of tl


def _patch_lang(fn: Any) -> Any:
    """As Triton's own; what it looks for, and what it makes, is the same each time."""
    seen = tuple(name for name, value in fn.__globals__.items() if value is tl or value is tl.core)
    if seen not in _scopes:
        scope = _original_patch_lang(fn)
        scope.set_attr(interpreter, "_get_np_dtype", _get_np_dtype)
        places = dict.fromkeys((owner, name) for owner, name, _ in scope._changes)
        _scopes[seen] = [(owner, name, inspect.getattr_static(owner, name)) for owner, name in places]
        return scope
    scope = interpreter._LangPatchScope()
    for owner, name, value in _scopes[seen]:
        scope.set_attr(owner, name, value)
    return scope


def _get_np_dtype(dtype: Any) -> Any:
    if dtype.name not in _np_dtypes:
        _np_dtypes[dtype.name] = _original_get_np_dtype(dtype)
    return _np_dtypes[dtype.name]


def _to_host(executor: Any, args: Any, kwargs: Any) -> Any:
    """What is there stays: Triton would copy each tensor onto itself."""
    values = [*args, *kwargs.values()]
    is_there = all(arg.is_cpu if type(arg) is torch.Tensor else type(arg) in _NUMBERS for arg in values)
    return (args, kwargs) if is_there else _original_init_args_hst(executor, args, kwargs)


def _from_host(executor: Any, args: Any, args_hst: Any, *kwargs: Any) -> None:
    if args_hst is not args:
        _original_restore_args_dev(executor, args, args_hst, *kwargs)


def _call(executor: GridExecutor, *args: Any, **kwargs: Any) -> None:
    """As on a GPU, where infinity less infinity warns nobody: memory that nobody has set may hold it."""
    __tracebackhide__ = True
    with np.errstate(all="ignore"):
        _original_call(executor, *args, **kwargs)


interpreter._patch_builtin, interpreter._patch_lang = _patch_builtin, _patch_lang
GridExecutor.__call__ = _call
GridExecutor._init_args_hst, GridExecutor._restore_args_dev = _to_host, _from_host
