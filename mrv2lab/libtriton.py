"""What Triton's interpreter needs of Triton's native library, in numpy, for machines without a build of it.

Triton is published for Linux only. Its interpreter is Python, but it loads and stores by way of
`triton._C.libtriton`. The functions below give the same results from the same memory; a test holds them
against the native ones. All other names of the library, such as those in `ir.MEM_SEMANTIC`, are compared and
passed on but never looked into: they are made when asked for.
"""

import os
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

# ---- names ----


class _Named(type):
    """A name of the native library; its attributes are names too, the same one each time."""

    def __getattr__(cls, name: str) -> "_Named":
        if name.startswith("__"):
            raise AttributeError(name)
        made: _Named = _Named(name, (), {})
        setattr(cls, name, made)
        return made

    def __call__(cls, *_: Any, **__: Any) -> Any:
        raise RuntimeError(
            f"Triton's native library is not here, so no {cls.__name__}: kernels are interpreted only"
        )


ir = _Named("ir", (), {})


def __getattr__(name: str) -> _Named:
    named: _Named = getattr(ir, name)  # `passes`, `llvm`, ...: imported by compilers that never run here
    return named


# ---- the environment ----


def getenv(name: str, default: Any = None, /) -> Any:
    """The variable's text; `default` if it is not set."""
    return os.environ.get(name, default)


def getenv_bool(name: str, default: Any, /) -> Any:
    """Whether the variable says yes; `default` if it is not set."""
    text = os.environ.get(name)
    return default if text is None else text.lower() in ("1", "on", "true", "y", "yes")


def get_cache_invalidating_env_vars() -> dict[str, str]:
    """What a compiled kernel would depend on. None is compiled here."""
    return {}


# ---- arguments ----


def native_specialize_impl(
    _backend: type, arg: Any, is_const: bool, _specialize: bool, _align: bool
) -> tuple[str, None]:
    """The type of a kernel's argument, such as `i32` or `*fp32`; no key, for nothing is compiled. TypeError:
    neither an integer nor a tensor. OverflowError: an integer of more than 64 bits.
    """
    if hasattr(arg, "data_ptr"):
        from triton._utils import canonicalize_ptr_dtype  # Triton imports this module first

        return canonicalize_ptr_dtype(arg.dtype, is_const), None
    if isinstance(arg, bool):
        return "u1", None
    if not isinstance(arg, int):
        raise TypeError(f"failed to specialize argument of type: {type(arg).__name__}")
    for name, low, high in (("i32", -(2**31), 2**31), ("i64", -(2**63), 2**63), ("u64", 0, 2**64)):
        if low <= arg < high:
            return name, None
    raise OverflowError("integer to be specialized too large to represent")


# ---- memory ----


def _cells(ptr: np.ndarray, itemsize: int) -> tuple[np.ndarray, np.ndarray]:
    """Memory from the lowest address on as overlapping cells, one at each byte; indices of those at `ptr`.

    Only cells that are indexed are touched, so it does not matter what lies between two addresses. A cell is
    a `void` of `itemsize` bytes, which has no alignment.
    """
    lowest = ptr.min()
    interface = {
        "version": 3,
        "typestr": f"|V{itemsize}",
        "data": (int(lowest), False),
        "shape": (int(ptr.max() - lowest) + 1,),
        "strides": (1,),
    }
    return np.asarray(SimpleNamespace(__array_interface__=interface)), (ptr - lowest).astype(np.intp)


def _flat(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).reshape(-1)


def load(ptr: np.ndarray, mask: np.ndarray, other: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """The values at `ptr` (uint64), bit by bit; those of `other` where `mask` is false. All of one shape."""
    addresses, chosen, cell = _flat(ptr), _flat(mask), f"|V{dtype.itemsize}"
    if addresses.size and chosen.all():
        cells, indices = _cells(addresses, dtype.itemsize)
        values: np.ndarray = cells[indices]
        return values.view(dtype).reshape(ptr.shape)
    values = _flat(other).view(cell).copy()
    if chosen.any():
        cells, indices = _cells(addresses[chosen], dtype.itemsize)
        values[chosen] = cells[indices]
    return values.view(dtype).reshape(ptr.shape)


def store(ptr: np.ndarray, value: np.ndarray, mask: np.ndarray) -> None:
    """Write `value` to `ptr` (uint64), in order, where `mask` is true. All of one shape."""
    chosen = _flat(mask)
    if chosen.any():
        cells, indices = _cells(_flat(ptr)[chosen], value.itemsize)
        cells[indices] = _flat(value).view(cells.dtype)[chosen]


# Integers are added as they wrap. Triton itself makes a maximum of floats from one of integers.
_INTEGERS, _FLOATS = "iu", "f"
_RMW: dict[str, tuple[str, Callable[..., Any]]] = {
    "ADD": (_INTEGERS, np.add),
    "FADD": (_FLOATS, np.add),
    "AND": (_INTEGERS, np.bitwise_and),
    "OR": (_INTEGERS, np.bitwise_or),
    "XOR": (_INTEGERS, np.bitwise_xor),
    "XCHG": (_INTEGERS, lambda old, new: new),
    "MAX": ("i", np.maximum),
    "MIN": ("i", np.minimum),
    "UMAX": ("u", np.maximum),
    "UMIN": ("u", np.minimum),
}


def atomic_rmw(op: type, ptr: np.ndarray, val: np.ndarray, mask: np.ndarray, _sem: object) -> np.ndarray:
    """Combine `val` with what is at `ptr`, in order, where `mask` is true. Returns what was there before.
    ValueError: Triton has no such operation on this dtype.
    """
    kinds, combine = _RMW[op.__name__]
    if val.dtype.kind not in kinds or (val.dtype.kind in _INTEGERS and val.itemsize < 4):
        raise ValueError("Unsupported data type")
    addresses, values = _flat(ptr), _flat(val)
    old = np.zeros_like(values)
    for i in np.flatnonzero(mask):
        cells, _ = _cells(addresses[i : i + 1], val.itemsize)
        old[i : i + 1] = cells.view(val.dtype)
        cells.view(val.dtype)[:] = combine(old[i : i + 1], values[i : i + 1])
    return old.reshape(ptr.shape)


def atomic_cas(ptr: np.ndarray, cmp: np.ndarray, val: np.ndarray, _sem: object) -> np.ndarray:
    """Write `val` to `ptr`, in order, where the bits of `cmp` are. Returns what was there before."""
    addresses, expected, values = _flat(ptr), _flat(cmp), _flat(val)
    old = np.empty_like(expected)
    for i, address in enumerate(addresses):
        cells, _ = _cells(np.array([address]), cmp.itemsize)
        old[i : i + 1] = cells.view(cmp.dtype)
        if old[i : i + 1].tobytes() == expected[i : i + 1].tobytes():
            cells[:] = values[i : i + 1].view(cells.dtype)
    return old.reshape(ptr.shape)


interpreter = SimpleNamespace(
    MEM_SEMANTIC=_Named("MEM_SEMANTIC", (), {}),
    RMW_OP=_Named("RMW_OP", (), {}),
    load=load,
    store=store,
    atomic_rmw=atomic_rmw,
    atomic_cas=atomic_cas,
)

# ---- in Triton's place ----


def install() -> None:
    """Be `triton._C.libtriton` from now on. Triton must not be imported yet."""
    this: Any = sys.modules[__name__]
    sys.modules["triton._C"] = SimpleNamespace(libtriton=this)  # type: ignore[assignment]
    sys.modules["triton._C.libtriton"] = this
    sys.modules["triton._C.libtriton.linear_layout"] = this.linear_layout
