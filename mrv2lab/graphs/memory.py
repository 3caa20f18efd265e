"""Which CPU tensors play the host's memory.

On a machine without a GPU every tensor is a CPU tensor, so somebody has to say which of them Python
may read during capture (flags, counters, metadata) and which play device memory. `host` says it.
The mark belongs to the storage: views of a host tensor are host tensors.
"""

import weakref

import torch

_host_storages: set[int] = set()
_pinned_storages: set[int] = set()


def host(tensor: torch.Tensor, *, pinned: bool = False) -> torch.Tensor:
    """Mark a CPU tensor, and every view of it, as host memory. Returns the same tensor.

    On CUDA the mark changes nothing: there the device of a tensor says what it is.

    Args:
        pinned: page-locked memory, which a graph may copy from and to. Use what is returned: on a machine
            with a GPU it is a copy, by `pin_memory`; on others a second mark stands for it.

    Raises:
        ValueError: the tensor lies in GPU memory.
    """
    if tensor.device.type != "cpu":
        raise ValueError(f"host() marks CPU tensors; got one on {tensor.device}")
    if pinned and torch.cuda.is_available():
        tensor = tensor.pin_memory()
    storage = tensor.untyped_storage()
    for marked in (_host_storages, _pinned_storages) if pinned else (_host_storages,):
        if storage._cdata not in marked:
            marked.add(storage._cdata)
            # torch keeps this Python object as long as the storage lives, so the mark dies with the memory.
            weakref.finalize(storage, marked.discard, storage._cdata)
    return tensor


def is_host(tensor: torch.Tensor) -> bool:
    """True if `tensor` shares the storage of a tensor that was marked with `host`."""
    storage = storage_or_none(tensor)
    return storage is not None and storage._cdata in _host_storages


def storage_or_none(tensor: torch.Tensor) -> torch.UntypedStorage | None:
    """A tensor's storage; None where it has none of its own: sparse ones, and the wrappers of torch.func."""
    try:
        return tensor.untyped_storage()
    except NotImplementedError:
        return None
