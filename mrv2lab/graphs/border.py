"""The border between host and device on a machine where both are a CPU's, and torch sees none.

There `x.to(device)` of a tensor in host memory does nothing, and neither does `x.to("cpu")` of one that plays
device memory. And what torch decides by the device, it decides for a CPU.
"""

import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes

from mrv2lab.errors import HostSyncError
from mrv2lab.graphs.memory import host, is_host, is_pinned

_Place = str | torch.device | torch.Tensor
_TensorType: Any = type(torch.FloatTensor)


class Border(TorchFunctionMode):
    """Sees what crosses, and lets it: as copies, which a capture takes or refuses like any other."""

    def __init__(self, *, is_open: bool = False):
        super().__init__()
        self.is_open = is_open  # data of Python's may become a device tensor, as outside of captures

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        crossing = _CROSSINGS.get(func)
        if crossing is None or (self.is_open and crossing in (_from_data, _new_tensor, _tensor_split)):
            return func(*args, **kwargs)
        return crossing(func, args, kwargs)


def _place(args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Place | None:
    """Where a call says that its result should lie."""
    return next((a for a in (*args, *kwargs.values()) if isinstance(a, _Place)), None)


def _is_hosts(place: _Place) -> bool:
    """Whether a place means host memory: that of a host tensor, or the word itself, where it is written out.
    A device object that says `cpu` may have been made to play the device, and so may a word in a variable.
    """
    if isinstance(place, torch.Tensor):
        return is_host(place)
    return isinstance(place, str) and place.startswith("cpu") and _is_written_out(place)


def _is_written_out(word: str) -> bool:
    """Whether a word stands in the code that has called."""
    frame = sys._getframe()
    while frame.f_globals.get("__name__", "").startswith("mrv2lab.graphs.") and frame.f_back:
        frame = frame.f_back
    return word in frame.f_code.co_consts


def _to(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tensor, place = args[0], _place(args[1:], kwargs)
    if place is None or _is_hosts(place) == is_host(tensor):
        return func(*args, **kwargs)
    given = (a for a in (*args[1:], kwargs.get("dtype")) if isinstance(a, torch.dtype))
    dtype = next(given, getattr(place, "dtype", tensor.dtype))
    non_blocking = kwargs.get("non_blocking", next((a for a in args[1:] if isinstance(a, bool)), False))
    if is_host(tensor):
        return torch.empty_strided(tensor.size(), tensor.stride(), dtype=dtype).copy_(tensor, non_blocking)
    return _to_host(tensor, dtype, non_blocking)


def _to_host(tensor: torch.Tensor, dtype: torch.dtype, non_blocking: bool) -> torch.Tensor:
    with _disable_current_modes():
        made = host(torch.empty_strided(tensor.size(), tensor.stride(), dtype=dtype), pinned=non_blocking)
    return made.copy_(tensor, non_blocking=non_blocking)


def _type(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`torch.FloatTensor`, or its name where it is written out, is the type of tensors of the host's."""
    given = dict(zip(("dtype", "non_blocking"), args[1:], strict=False)) | kwargs
    kind = given.get("dtype")
    if isinstance(kind, str) and _is_written_out(kind):
        kind = getattr(torch, kind.removeprefix("torch."), None)
    if not isinstance(kind, _TensorType) or kind.is_cuda or is_host(args[0]):
        return func(*args, **kwargs)
    return _to_host(args[0], kind.dtype, given.get("non_blocking", False))


def _pin_memory(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Without a GPU torch cannot do it; `host` says it of a copy. In words of torch's, as on a GPU."""
    if not is_host(args[0]):
        raise RuntimeError(f"cannot pin {args[0].type()!r}: it plays device memory, only the host's can be")
    return args[0] if is_pinned(args[0]) else host(args[0].clone(), pinned=True)


def _from_data(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`torch.tensor` and its kin: of data of Python's, or of a tensor."""
    place = _place(args[1:], kwargs)
    if isinstance(args[0], torch.Tensor) and func is not torch.tensor:
        return func(*args, **kwargs) if place is None else args[0].to(*args[1:], **kwargs)
    if place is not None and not _is_hosts(place):
        raise _from_python(f"torch.{func.__name__}(..., device=...)")
    return func(*args, **kwargs)


def _new_tensor(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if not _is_hosts(_place(args[2:], kwargs) or args[0]):
        raise _from_python("Tensor.new_tensor()")
    return func(*args, **kwargs)


def _from_python(what: str) -> HostSyncError:
    return HostSyncError(
        f"{what} copies Python's data to the device during capture, from memory that is not pinned; a graph "
        "cannot hold that. Make the tensor before the capture, or fill one on the device: torch.full"
    )


def _one_hot(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A CPU looks whether the classes are right; a GPU leaves that to an assertion on the device."""
    tensor, num_classes, *_ = (*args, *kwargs.values(), -1)
    if num_classes == -1 or is_host(tensor):
        return func(*args, **kwargs)
    made = torch.zeros((*tensor.shape, num_classes), dtype=tensor.dtype)
    return made.scatter_(-1, tensor.unsqueeze(-1), 1)


def _tensor_split(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Where to split is the host's to say: of a device tensor torch asks for a copy first, on a GPU."""
    for given in (*args[1:], *kwargs.values()):
        if isinstance(given, torch.Tensor) and not is_host(given):
            raise HostSyncError(
                "tensor_split during capture takes where to split from a device tensor, which the host would "
                "have to read; a graph cannot hold that"
            )
    return func(*args, **kwargs)


def _share_memory(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Device memory is shared as it is."""
    return func(*args, **kwargs) if is_host(args[0]) else args[0]


_CROSSINGS: dict[Any, Callable[..., Any]] = {
    torch.Tensor.to: _to,
    torch.Tensor.type: _type,
    torch.Tensor.pin_memory: _pin_memory,
    torch.tensor: _from_data,
    torch.as_tensor: _from_data,
    torch.asarray: _from_data,
    torch.Tensor.new_tensor: _new_tensor,
    F.one_hot: _one_hot,
    torch.tensor_split: _tensor_split,
    torch.Tensor.tensor_split: _tensor_split,
    torch.Tensor.share_memory_: _share_memory,
}
