"""Whose memory is whose: which CPU tensors play the host's, and what memory holds that nobody wrote.

On a machine without a GPU every tensor is a CPU tensor, so somebody has to say which of them Python
may read during capture (flags, counters, metadata) and which play device memory. `host` says it.
The mark belongs to the storage: views of a host tensor are host tensors.
"""

import weakref

import numpy as np
import torch

POISON = 0x7FFF
"""What two bytes of memory hold that nobody wrote: not a number in every float type, far out of range as an
integer, and with room above it, so that rounding it up to a page does not make it negative."""

_marked: set[int] = set()
_pinned: set[int] = set()
_made: set[int] = set()  # in a capture, by work of the host


def host(tensor: torch.Tensor, *, pinned: bool = False) -> torch.Tensor:
    """Mark a CPU tensor, and every view of it, as host memory. Returns the same tensor.

    On CUDA the mark changes nothing: there the device of a tensor says what it is.

    Args:
        pinned: page-locked memory, which a graph can copy from and to. Use what is returned: on a machine
            with a GPU it is a copy, by `pin_memory`; on others a second mark stands for it.

    Raises:
        ValueError: the tensor lies in GPU memory.
    """
    if tensor.device.type != "cpu":
        raise ValueError(f"host() marks CPU tensors; got one on {tensor.device}")
    if pinned:
        tensor = tensor.pin_memory() if torch.cuda.is_available() else tensor
        _mark(tensor, _pinned)
    return _mark(tensor, _marked)


def made_on_host(tensor: torch.Tensor) -> torch.Tensor:
    """For executors: the host has made this tensor during a capture, from its own memory or Python's."""
    return tensor if is_host(tensor) else _mark(tensor, _made)


def _mark(tensor: torch.Tensor, marks: set[int]) -> torch.Tensor:
    storage = tensor.untyped_storage()
    if storage._cdata not in marks:
        marks.add(storage._cdata)
        # torch keeps this Python object as long as the storage lives, so the mark dies with the memory.
        weakref.finalize(storage, marks.discard, storage._cdata)
    return tensor


def is_host(tensor: torch.Tensor) -> bool:
    """True if `tensor` shares the storage of a tensor that was marked with `host`, or made by the host."""
    storage = storage_or_none(tensor)
    return storage is not None and (storage._cdata in _marked or storage._cdata in _made)


def is_marked(tensor: torch.Tensor) -> bool:
    """True if `tensor` shares the storage of a tensor that was marked with `host`."""
    storage = storage_or_none(tensor)
    return storage is not None and storage._cdata in _marked


def is_pinned(tensor: torch.Tensor) -> bool:
    """True if `tensor` shares the storage of a tensor that was marked as pinned."""
    storage = storage_or_none(tensor)
    return storage is not None and storage._cdata in _pinned


def storage_or_none(tensor: torch.Tensor) -> torch.UntypedStorage | None:
    """A tensor's storage; None where it has none of its own: sparse ones, and the wrappers of torch.func."""
    try:
        return tensor.untyped_storage()
    except NotImplementedError:
        return None


def unwritten(memory: np.ndarray) -> np.ndarray:
    """Fill bytes with the poison. Returns them."""
    memory[0::2], memory[1::2] = POISON & 0xFF, POISON >> 8
    return memory
