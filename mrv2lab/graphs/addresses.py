"""Addresses of memory that a tape uses and does not own, as a CUDA graph holds bare pointers.

A graph keeps no memory alive and follows no tensor that moves. Where memory is freed, or a tensor takes its
contents elsewhere (`resize_`, `share_memory_`), an address leads from then on to whatever the next owner of
the memory writes there; here, where the memory may be gone, to poison.
"""

import ctypes
import weakref

import numpy as np
import torch
from torch.utils._python_dispatch import _disable_current_modes

from mrv2lab.graphs.memory import unwritten


def alias(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory, not kept alive. A tensor without elements or memory is only detached."""
    storage = tensor.untyped_storage()
    if not tensor.numel() or not storage.nbytes():
        return tensor.detach()
    look_after_move(storage._cdata)
    if storage._cdata not in _borrowed:
        _borrowed[storage._cdata] = _Borrowed(storage)
    return _borrowed[storage._cdata].alias(tensor)


def look_after_moves() -> None:
    """Before a replay: tensors whose memory has gone elsewhere leave their addresses behind."""
    for number in list(_borrowed):
        look_after_move(number)


def look_after_move(number: int) -> None:
    """The same of one storage."""
    memory = _borrowed.get(number)
    if memory is not None and memory.has_moved():
        memory.lose()


def over(memory: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """A tensor over bytes, with type, shape and layout of another one."""
    with torch.inference_mode(False):  # callers may write to captured tensors outside inference mode
        whole = memory[: len(memory) // like.itemsize * like.itemsize].view(like.dtype)
        made = whole.as_strided(like.size(), like.stride(), int(like.storage_offset()))
    made = made.conj() if like.is_conj() else made
    return made._neg_view() if like.is_neg() else made


class _Borrowed:
    """The memory of a storage, as long as that lives and stays where it is."""

    def __init__(self, storage: torch.UntypedStorage):
        self._storage = weakref.ref(storage)
        self._cdata, self._begin, self._num_bytes = storage._cdata, storage.data_ptr(), storage.nbytes()
        memory = (ctypes.c_byte * self._num_bytes).from_address(self._begin)
        self._bytes = torch.frombuffer(memory, dtype=torch.uint8)
        self._is_lent = not storage.resizable()  # through DLPack or the like: its owner goes on holding it
        self._aliases: weakref.WeakValueDictionary[int, torch.Tensor] = weakref.WeakValueDictionary()
        # torch keeps this Python object as long as the storage lives.
        weakref.finalize(storage, self.lose).atexit = False

    def has_moved(self) -> bool:
        storage = self._storage()
        return storage is None or storage.data_ptr() != self._begin

    def alias(self, like: torch.Tensor) -> torch.Tensor:
        made = over(self._bytes, like)
        self._aliases[id(made)] = made
        return made

    def lose(self) -> None:
        """Let all aliases lead to poison."""
        if _borrowed.get(self._cdata) is self:
            del _borrowed[self._cdata]
        if not self._aliases or self._is_lent:
            return
        with _disable_current_modes(), torch._C.DisableTorchFunction():  # memory may die during a capture
            lost = torch.from_numpy(unwritten(np.empty(self._num_bytes, np.uint8))).untyped_storage()
            for made in self._aliases.values():
                made.set_(lost, made.storage_offset(), made.size(), made.stride())  # type: ignore[call-overload]
        self._aliases.clear()


_borrowed: dict[int, _Borrowed] = {}  # by storage
