"""Ops that Python implements: seen from inside, by every mode that watches a capture or an audit.

To CUDA such an op is host code like any other. It runs once, at capture, and what it launches is in the
graph: `torch.library.custom_op`, `triton_op`, `Library.impl`, vLLM's `direct_register_custom_op`. torch's
dispatcher shows a mode the op as one piece and runs its Python with the mode switched off. Here a mode opens
it instead: torch knows which kernels are Python, and runs one by its key, with the mode switched on again.
Nothing is patched, and it does not matter how or when an op was registered.

A capture may end inside an op and another one begin, as vLLM's do that break at attention. Then the mode on
torch's stack is another one of the same kind, and torch itself puts the old one back in its place.
"""

import functools
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch._library.custom_ops import OPDEF_TO_LIB
from torch._library.triton import is_wrap_triton_enabled, set_wrap_triton_enabled
from torch._ops import OpOverload, OpOverloadPacket
from torch.overrides import (
    TorchFunctionMode,
    _get_current_function_mode_stack,
    _pop_mode,
    enable_reentrant_dispatch,
)
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack
from torch.utils._python_dispatch import _pop_mode as _pop_dispatch_mode
from torch.utils._pytree import tree_leaves

from mrv2lab.errors import CaptureError

Mode = TorchDispatchMode | TorchFunctionMode

_COMPOSITE = "CompositeImplicitAutograd"
# Which kernel a device gets that has none of its own, in this order.
_DEFAULTS = ("CompositeExplicitAutogradNonFunctional", "CompositeExplicitAutograd", _COMPOSITE)

_watching = threading.local()


@functools.cache
def _registered_as(func: OpOverload, key: str) -> set[str]:
    """What torch notes of a kernel that came from Python: of a composite one maybe without a key."""
    name = func.name().replace("::", "/")
    return {f"{name}/{key}", f"{name}/"} if key == _COMPOSITE else {f"{name}/{key}"}


def _is_python(func: OpOverload, key: str) -> bool:
    own = OPDEF_TO_LIB.get(func.name())
    # Of an op that is defined again torch forgets the note when the first definition is collected; its own
    # library still has it.
    noted = torch.library._impls | own._op_impls if own is not None else torch.library._impls
    return not _registered_as(func, key).isdisjoint(noted)


def _has_kernel(func: OpOverload, key: str) -> bool:
    has_one: bool = torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), key)
    return has_one and not torch._C._dispatch_kernel_for_dispatch_key_is_fallthrough(func.name(), key)


def _python_key(func: OpOverload, args: Any, kwargs: Any) -> str | None:
    """The dispatch key of the device at hand if `func` has a Python kernel for it."""
    keys = ("CPU", "CUDA", *_DEFAULTS)
    if not any(_is_python(func, key) for key in keys):
        return None
    leaves = tree_leaves((args, kwargs))
    devices = {leaf.device.type for leaf in leaves if isinstance(leaf, torch.Tensor)}
    devices = devices or {leaf.type for leaf in leaves if isinstance(leaf, torch.device)}
    key: str = torch._C._dispatch_key_for_device(min(devices - {"cpu"}, default="cpu"))
    chosen = next((at for at in (key, *_DEFAULTS) if _has_kernel(func, at)), None)
    return key if chosen is not None and _is_python(func, chosen) else None


def is_python_op(func: OpOverload, args: Any, kwargs: Any) -> bool:
    """Whether an op, called like this, is implemented in Python."""
    return _python_key(func, args, kwargs) is not None


def opened(mode: TorchDispatchMode, func: OpOverload, args: Any, kwargs: Any) -> Any:
    """Run an op that is made of others, by Python or by torch itself, so that `mode` sees those.

    For `__torch_dispatch__` of `mode`.

    Returns:
        What the op returns; NotImplemented if it is of one piece.
    """
    key = _python_key(func, args, kwargs)
    if key is None:
        with mode:
            return func.decompose(*args, **kwargs)
    # Autograd and autocast are off in here, as below them. Inside an op they are what they were where it was
    # called, unless a kernel of its own for autograd has led here.
    own_autograd = any(_has_kernel(func, at) for at in ("Autograd", f"Autograd{key}"))
    with (
        enable_reentrant_dispatch(),
        torch._C._AutoDispatchBelowAutograd() if own_autograd else nullcontext(),
    ):
        return _run(mode, func, key, args, kwargs)


def opened_composite(mode: TorchFunctionMode, func: Any, args: Any, kwargs: Any) -> Any:
    """As `opened`, for `__torch_function__`: a composite op in Python comes before any dispatch mode."""
    is_packet = isinstance(func, OpOverloadPacket)
    overloads = [getattr(func, name) for name in func.overloads()] if is_packet else [func]
    if not any(isinstance(op, OpOverload) and _is_python(op, _COMPOSITE) for op in overloads):
        return NotImplemented
    if is_packet:
        func = getattr(func, torch._C._jit_resolve_packet(func._qualified_op_name, *args, **kwargs))
    key = _python_key(func, args, kwargs)
    return NotImplemented if key is None else _run(mode, func, key, args, kwargs)


def require_kernel(func: OpOverload, tensor: torch.Tensor) -> None:
    """Refuse an op that nobody has implemented for the device: its shape function alone would record it.

    Raises:
        CaptureError: names the op and the device.
    """
    device, has_kernel = tensor.device.type, torch._C._dispatch_has_computed_kernel_for_dispatch_key
    if func.namespace != "aten" and not has_kernel(func.name(), torch._C._dispatch_key_for_device(device)):
        raise CaptureError(f"{func} has no implementation for {device}, so it cannot be captured here")


def _run(mode: Mode, func: OpOverload, key: str, args: Any, kwargs: Any) -> Any:
    with ExitStack() as stack:
        stack.enter_context(_back_on(mode))
        for other in _switched_off():
            stack.enter_context(_back_on(other))
        return func.redispatch(torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key)), *args, **kwargs)


def _switched_off() -> list[TorchFunctionMode]:
    """Function modes that should go on inside ops and that torch has taken off its stack to call one."""
    left = Counter(map(type, _get_current_function_mode_stack()))  # by type: they may have changed places
    left.subtract(map(type, modes := getattr(_watching, "modes", ())))
    return [mode for mode in modes if left[type(mode)] < 0]


def _num_modes(mode: Mode) -> int:
    is_dispatch = isinstance(mode, TorchDispatchMode)
    return len(_get_current_dispatch_mode_stack() if is_dispatch else _get_current_function_mode_stack())


@contextmanager
def _back_on(mode: Mode) -> Iterator[None]:
    mode.__enter__()
    depth = _num_modes(mode)
    try:
        yield
    finally:
        if _num_modes(mode) >= depth:  # else a capture has ended inside, and with it this mode
            mode.__exit__(None, None, None)


@contextmanager
def seen_inside(mode: TorchFunctionMode) -> Iterator[None]:
    """A function mode for this thread that goes on inside ops in Python, where torch switches it off.

    Kernels that `wrap_triton` wraps are launched like any other; as ops of torch.compile's no mode gets them.
    """
    before = getattr(_watching, "modes", ())
    _watching.modes = (*before, mode)
    try:
        with set_wrap_triton_enabled(False), mode:
            yield
    finally:
        _watching.modes = before


@contextmanager
def modes_as_found() -> Iterator[None]:
    """Put torch's modes back as they were, also where an op raises after its capture has ended inside it."""
    kinds = (
        (_get_current_dispatch_mode_stack, _pop_dispatch_mode),
        (_get_current_function_mode_stack, _pop_mode),
    )
    before = [len(stack()) for stack, _ in kinds]
    try:
        with set_wrap_triton_enabled(is_wrap_triton_enabled()):
            yield
    finally:
        for (stack, pop), depth in zip(kinds, before, strict=True):
            while len(left := stack()) > depth:
                try:
                    left[-1].__exit__(None, None, None)
                except IndexError:  # what another one has noted when it was entered, this one has used up
                    pop()
