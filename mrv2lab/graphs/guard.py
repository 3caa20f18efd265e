"""Refuses host reads of device values while a graph is being captured, alike on both executors.

CUDA would notice most of these by itself, but only by breaking the capture, with an error that
surfaces later and names no line. Raising before the work is issued keeps the stream usable.
"""

import copy
import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch._ops import HigherOrderOperator
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map_only

from mrv2lab.errors import CaptureError, HostSyncError
from mrv2lab.graphs.mode import DispatchMode
from mrv2lab.graphs.python_ops import opened, opened_composite, require_kernel, seen_inside

# The result, or its shape, depends on values: the host must wait for the device to know it.
_SYNCHRONISING_TAGS = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
# These leave torch before any dispatch happens, or do not dispatch at all on a CPU tensor.
_HOST_METHODS = {
    getattr(torch.Tensor, name): name
    for name in (
        "tolist", "numpy", "cpu", "apply_", "map_", "__array__", "__repr__", "__format__", "__reduce_ex__",
    )
}  # fmt: skip


@dataclass(frozen=True)
class Memory:
    """How an executor tells whose memory a tensor lies in."""

    device_type: str  # of the tensors that are captured: `cuda`, or `cpu` playing it
    is_device: Callable[[torch.Tensor], bool]  # whether a tensor lies in device memory
    is_pinned: Callable[[torch.Tensor], bool]  # whether a host tensor lies in page-locked memory


def tensors_in(*values: Any) -> list[torch.Tensor]:
    """Every tensor in nested arguments, in order."""
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]


def each_tensor(fn: Callable[[torch.Tensor], torch.Tensor], values: Any) -> Any:
    """Nested arguments with `fn` of each tensor. One that is given twice stays one: ops can tell."""
    made: dict[int, torch.Tensor] = {}

    def once(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in made:
            made[id(tensor)] = fn(tensor)
        return made[id(tensor)]

    return tree_map_only(torch.Tensor, once, values)


@functools.cache
def makes_tensors(func: Any) -> bool:
    """Whether an op returns tensors."""
    return any("Tensor" in str(returned.type) for returned in func._schema.returns)


def refused(what: str, tensor: torch.Tensor) -> HostSyncError:
    """The error for a read of a device tensor by the host."""
    shape = list(tensor.shape)
    return HostSyncError(
        f"{what} makes the host wait for a device tensor of shape {shape} during capture; a graph cannot "
        "hold that. Keep the value on the device, or keep it in host memory and read it before capture"
    )


class _MethodGuard(TorchFunctionMode):
    """Catches `tolist`, `print` and the like, which never reach the dispatcher."""

    def __init__(self, memory: Memory):
        super().__init__()
        self.memory = memory

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = _HOST_METHODS.get(func)
        if func is torch.Tensor.untyped_storage and _is_pickled():
            name = "__reduce_ex__"
        if name is None:
            result = opened_composite(self, func, args, kwargs or {})
            return func(*args, **(kwargs or {})) if result is NotImplemented else result
        if self.memory.is_device(args[0]):
            raise refused(f"Tensor.{name}()", args[0])
        with _disable_current_modes():  # torch refuses these calls while any dispatch mode is on
            return func(*args, **(kwargs or {}))


def _is_pickled() -> bool:
    """Whether a tensor's storage is asked for to be pickled: of `__reduce_ex__` itself torch tells no mode.

    `copy.copy` goes the same way, and reads nothing: the copy is over the same storage.
    """
    frame, wanted = sys._getframe(2), ["_typed_storage", "_reduce_ex_internal", "__reduce_ex__"]
    while wanted and frame.f_back:
        name, frame = frame.f_code.co_name, frame.f_back
        if name == wanted[0]:
            del wanted[0]
        elif name != "__torch_function__":  # of modes above this one
            return False
    return not wanted and frame.f_code is not copy.copy.__code__


class _OpGuard(DispatchMode):
    """Catches `item`, `bool`, `nonzero`, boolean masks and copies that a graph cannot hold."""

    supports_higher_order_operators = True

    def __init__(self, memory: Memory):
        super().__init__()
        self.memory = memory
        self.refusal: CaptureError | None = None  # of the last op

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.refusal = None
        try:
            return self._run(func, args, kwargs or {})
        except CaptureError as error:
            self.refusal = error
            raise

    def _run(self, func: Any, args: Any, kwargs: Any) -> Any:
        if isinstance(func, HigherOrderOperator):
            raise CaptureError(
                f"torch.{func.name()} during capture: what it chooses by device values cannot be recorded"
            )
        result = opened(self, func, args, kwargs)
        if result is not NotImplemented:
            return result
        call = _Call(func, args, kwargs)
        tensors = tensors_in(args, kwargs)
        on_device = [t for t in tensors if self.memory.is_device(t)]
        if on_device or not tensors:
            self._require_registered(call)
        if on_device:
            require_kernel(func, on_device[0])
            self._require_held(call)
            if self._synchronises(call):
                raise refused(str(func.overloadpacket), on_device[0])
        return func(*args, **kwargs)

    def _require_registered(self, call: "_Call") -> None:
        """A graph advances the default generator only, or one that has been registered with it."""
        generators = [v for v in (*call.args, *call.kwargs.values()) if isinstance(v, torch.Generator)]
        if not generators or generators[0].device.type != self.memory.device_type:
            return
        numbers: Any = generators[0]  # the op sees another Python object than its caller
        defaults: tuple[Any, ...] = (torch.default_generator, *torch.cuda.default_generators)
        if all(numbers._cdata != default._cdata for default in defaults):
            raise CaptureError(
                f"{call.name} during capture draws from a generator that is not registered with the graph; "
                "only the default one is"
            )

    def _require_held(self, call: "_Call") -> None:
        """A graph holds a copy between host and device if nobody waits for it, and the memory is pinned."""
        is_device = self.memory.is_device
        match call.name:
            case "aten.copy_" if not isinstance(call["src"], torch.Tensor):  # a number of Python's
                hosts, is_held = call["self"], False
            case "aten.copy_" if is_device(call["self"]) != is_device(call["src"]):
                hosts = call["src"] if is_device(call["self"]) else call["self"]
                is_as_it_lies = hosts.is_contiguous() and call["self"].numel() == call["src"].numel()
                is_held = self.memory.is_pinned(hosts) and is_as_it_lies
            case "aten._to_copy" if call["device"] and call["device"].type != call["self"].device.type:
                hosts = call["self"]
                is_held = is_device(hosts) or (self.memory.is_pinned(hosts) and hosts.is_contiguous())
            case _:
                return
        if hosts.numel() and not (is_held and call["non_blocking"]):
            raise HostSyncError(
                f"{call.name} between host and device during capture: a graph cannot hold it, except with "
                "non_blocking=True, and pinned memory that lies as it is copied. Copy before the capture"
            )

    def _synchronises(self, call: "_Call") -> bool:
        is_device = self.memory.is_device
        match call.name:
            case "aten.index":
                return any(map(self._is_unknown, tensors_in(call["indices"])))
            case "aten.index_put" | "aten.index_put_" | "aten._index_put_impl_":
                indices, value = tensors_in(call["indices"]), call["values"]
                if not call["accumulate"] and [is_mask(i) and is_device(i) for i in indices] == [True]:
                    # torch makes a `masked_fill_` of it, if the value is a number of the host's
                    return is_device(value) or value.numel() != 1
                return not is_device(value) or any(map(self._is_unknown, indices))
            case "aten.masked_fill" | "aten.masked_fill_" | "aten.index_fill" | "aten.index_fill_":
                return isinstance(call["value"], torch.Tensor) and is_device(call["value"])
            case "aten.repeat_interleave":
                return call["output_size"] is None
            case "aten.normal":  # is any of them negative?
                return isinstance(call["std"], torch.Tensor) and bool(call["std"].numel())
            case "aten.histc":
                return bool(call["min"] == call["max"])
            case name if name.startswith("aten._to_sparse"):  # which elements are not zero?
                return bool(call["self"].layout is torch.strided)
        return call.name in _LOOKS_AT_VALUES or bool(_SYNCHRONISING_TAGS & set(call.func.tags))

    def _is_unknown(self, index: torch.Tensor) -> bool:
        """Whether an index has a size that depends on device values, or has to be copied to the device.

        The elements that a mask of the host's picks are copied too, but torch puts them into pinned memory.
        """
        return is_mask(index) == self.memory.is_device(index)


# Untagged: these look whether an algorithm has converged, or whether a matrix can be inverted at all.
_LOOKS_AT_VALUES = {
    f"aten.{name}"
    for name in (
        "_linalg_check_errors", "_linalg_eigh", "_linalg_svd", "linalg_eig", "linalg_eigvals",
        "linalg_matrix_exp", "linalg_pinv",
    )
}  # fmt: skip


_UNTAGGED_VIEWS = {"aten::_unsafe_view", "aten::unsafe_split", "aten::unsafe_split_with_sizes"}


def is_view(func: Any) -> bool:
    """Whether an op computes nothing: what it returns is memory that it was given."""
    return func.is_view or torch.Tag.inplace_view in func.tags or func._schema.name in _UNTAGGED_VIEWS


def is_mask(index: torch.Tensor) -> bool:
    """Whether an index picks elements by yes and no."""
    return index.dtype in (torch.bool, torch.uint8)


class _Call:
    """An op and its arguments, by name, with the defaults of those that are not given."""

    def __init__(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]):
        self.func, self.args, self.kwargs = func, args, kwargs
        self.name = func._schema.name.replace("::", ".")

    def __getitem__(self, name: str) -> Any:
        for i, argument in enumerate(self.func._schema.arguments):
            if argument.name == name:
                return self.args[i] if i < len(self.args) else self.kwargs.get(name, argument.default_value)
        raise KeyError(name)


@contextmanager
def no_host_reads(memory: Memory) -> Iterator[None]:
    """Within this context a host read of a device value raises `HostSyncError`, a `CaptureError`."""
    guard = _OpGuard(memory)
    with seen_inside(_MethodGuard(memory)), guard:
        try:
            yield
        except RuntimeError as error:
            # TorchScript raises an error of its own in place of ours, without its type, words or cause.
            if guard.refusal is None or "in the TorchScript interpreter" not in str(error):
                raise
            raise guard.refusal.with_traceback(error.__traceback__) from error
        finally:
            guard.refusal = None  # its traceback holds the guard, and tensors
