"""Refuses host reads of device values while a graph is being captured, alike on both executors.

CUDA would notice most of these by itself, but only by breaking the capture, with an error that
surfaces later and names no line. Raising before the work is issued keeps the stream usable.
"""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

from mrv2lab.errors import HostSyncError
from mrv2lab.graphs.python_ops import opened, opened_composite, require_kernel, seen_inside

IsDevice = Callable[[torch.Tensor], bool]

aten = torch.ops.aten
# The result, or its shape, depends on values: the host must wait for the device to know it.
_SYNCHRONISING_TAGS = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
# Tagged as well, but only a boolean mask makes their shape depend on values.
_INDEXING = {
    aten.index.Tensor,
    aten.index_put.default,
    aten.index_put_.default,
    aten._index_put_impl_.default,
}
# These leave torch before any dispatch happens, or do not dispatch at all on a CPU tensor.
_HOST_METHODS = {torch.Tensor.tolist: "tolist", torch.Tensor.numpy: "numpy", torch.Tensor.cpu: "cpu"}


def tensors_in(*values: Any) -> list[torch.Tensor]:
    """Every tensor in nested arguments, in order."""
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]


@functools.cache
def makes_tensors(func: Any) -> bool:
    """Whether an op returns tensors."""
    return any("Tensor" in str(returned.type) for returned in func._schema.returns)


def _refuse(what: str, tensor: torch.Tensor) -> HostSyncError:
    shape = list(tensor.shape)
    return HostSyncError(
        f"{what} makes the host wait for a device tensor of shape {shape} during capture; a graph cannot "
        "hold that. Keep the value on the device, or keep it in host memory and read it before capture"
    )


class _MethodGuard(TorchFunctionMode):
    """Catches `tolist`, `numpy` and `cpu`, which never reach the dispatcher."""

    def __init__(self, is_device: IsDevice):
        super().__init__()
        self.is_device = is_device

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = _HOST_METHODS.get(func)
        if name is None:
            result = opened_composite(self, func, args, kwargs or {})
            return func(*args, **(kwargs or {})) if result is NotImplemented else result
        if self.is_device(args[0]):
            raise _refuse(f"Tensor.{name}()", args[0])
        with _disable_current_modes():  # torch refuses these calls while any dispatch mode is on
            return func(*args, **(kwargs or {}))


class _OpGuard(TorchDispatchMode):
    """Catches `item`, `bool`, `nonzero`, boolean masks and blocking copies between host and device."""

    def __init__(self, is_device: IsDevice):
        super().__init__()
        self.is_device = is_device

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = opened(self, func, args, kwargs)
        if result is not NotImplemented:
            return result
        on_device = [t for t in tensors_in(args, kwargs) if self.is_device(t)]
        if on_device:
            require_kernel(func, on_device[0])
        if on_device and self._synchronises(func, args, kwargs):
            raise _refuse(str(func.overloadpacket), on_device[0])
        return func(*args, **kwargs)

    def _synchronises(self, func: Any, args: Any, kwargs: Any) -> bool:
        if func in _INDEXING:
            return any(t.dtype in (torch.bool, torch.uint8) for t in tensors_in(args[1]))
        if func is aten.copy_.default:
            crosses = self.is_device(args[0]) != self.is_device(args[1])
            non_blocking = args[2] if len(args) > 2 else kwargs.get("non_blocking", False)
            return crosses and args[1].dim() > 0 and not non_blocking
        if func is aten._to_copy.default:
            target = kwargs.get("device")
            return (
                target is not None
                and target.type != args[0].device.type
                and not kwargs.get("non_blocking", False)
            )
        return bool(_SYNCHRONISING_TAGS & set(func.tags))


@contextmanager
def no_host_reads(is_device: IsDevice) -> Iterator[None]:
    """Within this context a host read of a device value raises `HostSyncError`, a `CaptureError`.

    Args:
        is_device: tells whether a tensor lies in device memory.
    """
    with seen_inside(_MethodGuard(is_device)), _OpGuard(is_device):
        yield
