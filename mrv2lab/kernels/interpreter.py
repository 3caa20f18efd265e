"""Triton's interpreter, with what it works out anew for every operation kept.

Half of the time that it spends on a kernel of a few rows goes into the types of blocks, into numpy's type for
them and into looking for what to wrap in `triton.language`: the same ones in every launch. Like those
wrappers, what stands here is in place only while a kernel is interpreted, whosever kernel it is.
"""

import inspect
from functools import cache
from types import SimpleNamespace
from typing import Any

import triton.language as tl
from triton.language.semantic import TritonSemantic
from triton.runtime import interpreter
from triton.runtime.interpreter import InterpreterOptions, interpreter_builder

# The interpreter would spend 40 % of its time on overflow checks that only speak in debug mode.
interpreter_builder.options = InterpreterOptions(sanitize_overflow=False)

_original = SimpleNamespace(
    patch_lang=interpreter._patch_lang,
    np_dtype=interpreter._get_np_dtype,
    unwrap=tl.core._unwrap_if_constexpr,
    make_type=tl.core.block_type.__init__,
    broadcast=TritonSemantic.broadcast_impl_value,
)
_NESTED = (list, tuple, tl.core.tuple, tl.constexpr)
_OF_SCALARS = tl.core.tuple([]), tl.constexpr(1)  # shape and number of elements
_np_dtypes: dict[str, Any] = {}  # name of Triton's type -> numpy's
_types: dict[tuple[Any, ...], dict[str, Any]] = {}  # element type's name and shape -> what such a type holds


def _get_np_dtype(dtype: Any) -> Any:
    found = _np_dtypes.get(dtype.name)
    if found is None:
        found = _np_dtypes[dtype.name] = _original.np_dtype(dtype)
    return found


def _unwrap_if_constexpr(value: Any) -> Any:
    if type(value) is tl.constexpr:
        return value.value
    return _original.unwrap(value) if isinstance(value, _NESTED) else value


def _broadcast_impl_value(semantic: Any, lhs: Any, rhs: Any) -> Any:
    """Two blocks of one shape are what the original would make of them."""
    a, b = lhs.type, rhs.type
    has_one_shape = a.is_block() and b.is_block() and a.shape.values == b.shape.values
    return (lhs, rhs) if has_one_shape else _original.broadcast(semantic, lhs, rhs)


def _make_type(block_type: Any, element_ty: Any, shape: Any) -> None:
    key = (element_ty.name, *(getattr(size, "value", size) for size in shape))
    if key not in _types:
        _original.make_type(block_type, element_ty, shape)
        sizes = tl.core.tuple([tl.constexpr(size) for size in block_type.shape])
        _types[key] = vars(block_type) | {"of_tensors": (sizes, tl.constexpr(block_type.numel))}
    vars(block_type).update(_types[key])


def _make_tensor(tensor: Any, handle: Any, type: Any) -> None:
    tensor.handle, tensor.type, tensor.dtype = handle, type, type.scalar
    tensor.shape, tensor.numel = type.of_tensors if type.is_block() else _OF_SCALARS


@cache
def _builtins(owner: Any) -> list[tuple[str, Any]]:
    return [(name, member) for name, member in inspect.getmembers(owner) if tl.core.is_builtin(member)]


def _patch_builtin(owner: Any, builder: Any, scope: Any) -> None:
    for name, member in _builtins(owner):
        interpreter._patch_attr(owner, name, member, builder, scope)


def _patch_lang(fn: Any) -> Any:
    scope = _original.patch_lang(fn)
    for owner, name, new in (
        (interpreter, "_get_np_dtype", _get_np_dtype),
        (tl.core, "_unwrap_if_constexpr", _unwrap_if_constexpr),
        (tl.core.block_type, "__init__", _make_type),
        (tl.core.tensor, "__init__", _make_tensor),
        (TritonSemantic, "broadcast_impl_value", _broadcast_impl_value),
    ):
        scope.set_attr(owner, name, new)
    return scope


interpreter._patch_builtin, interpreter._patch_lang = _patch_builtin, _patch_lang
