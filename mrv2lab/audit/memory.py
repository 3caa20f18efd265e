"""Memory that nobody has written: it is handed out with a known pattern, and writes to it are noted.

A pattern has to be safe, because what nobody wrote may be used as an index: integers are 0 or 1, so that
a GPU reads a wrong row and does not assert. Floats are finite, for the same reason.

A comparison may answer two patterns alike. So an eager pass that has read such memory is repeated under
further ones: zero, the largest and the lowest number, none at all.
"""

import weakref
from collections.abc import Iterable, Iterator, Mapping, Set
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from math import nan
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from mrv2lab.graphs.memory import storage_or_none

FLOATS = (1037.25, -523.5)
INTEGERS = (0, 1)
_MOST_CELLS = 1 << 14
FURTHER = range(2, 6)  # numbers of the further patterns


def pattern(dtype: torch.dtype, which: int, *, is_checked: bool = False) -> float | int:
    """What memory of a type holds under a pattern; integers may be anything where indices are checked."""
    if dtype.is_floating_point or dtype.is_complex:
        floats = torch.finfo(dtype)
        some = (min(max(value, floats.min), floats.max) for value in FLOATS)  # those of 8 bits hold less
        return (*some, 0.0, floats.max, floats.min, nan)[which]
    if which < FURTHER.start or dtype is torch.bool or not is_checked:
        return INTEGERS[which % len(INTEGERS)]
    integers = torch.iinfo(dtype)
    return (-1 if integers.min else integers.max, integers.max, integers.min, 2)[which - FURTHER.start]


class Cells:
    """Device memory with the pattern of each allocation of a capture, so that a replay can change it."""

    def __init__(self, device: torch.device):
        self._floats = torch.full((_MOST_CELLS,), FLOATS[0], dtype=torch.float32, device=device)
        self._integers = torch.full((_MOST_CELLS,), INTEGERS[0], dtype=torch.int32, device=device)
        self._ranges = [(t.data_ptr(), t.data_ptr() + t.nbytes) for t in (self._floats, self._integers)]
        self.taken = 0

    def fill(self, tensor: torch.Tensor) -> int:
        """Give a tensor the pattern of a new cell, now or in the capture under way; returns its number."""
        number = min(self.taken, _MOST_CELLS - 1)
        self.taken += 1
        is_float = tensor.dtype.is_floating_point or tensor.dtype.is_complex
        tensor.copy_((self._floats if is_float else self._integers)[number])
        return number

    def set(self, numbers: Set[int], which: int) -> None:
        index = torch.tensor(sorted(numbers), dtype=torch.int64, device=self._floats.device)
        self._floats[index] = FLOATS[which]
        self._integers[index] = INTEGERS[which]

    def holds(self, address: int) -> bool:
        """Whether an address is one of a cell: a node that has it belongs to the audit."""
        return any(start <= address < end for start, end in self._ranges)


@dataclass
class Allocation:
    """What an `empty` handed out."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    position: int  # the line that asked for it
    cell: int  # its cell in a capture, or its turn in an eager pass


class Shadow:
    """Which elements of an allocation have been written; bookkeeping of the host. Larger types that look at
    the same memory count as several."""

    def __init__(self, tensor: torch.Tensor, position: int = 0, cell: int = 0):
        self.allocation = Allocation(tuple(tensor.shape), tensor.dtype, position, cell)
        self._unit = tensor.itemsize
        self.written = np.zeros(tensor.untyped_storage().nbytes() // self._unit, dtype=bool)

    def note_write(self, tensor: torch.Tensor | None) -> None:
        """Every element of this view has been written; without one, nobody knows which, so all count."""
        if tensor is None or (units := self._units(tensor)) is None:
            self.written[:] |= tensor is None or tensor.numel() > 0
        else:
            units[...] = True

    def is_written(self, tensor: torch.Tensor) -> bool:
        """Whether every element of this view has been written."""
        units = self._units(tensor)
        return bool(self.written.all() if units is None else units.all())

    def view(self, tensor: torch.Tensor) -> Any:
        """Which elements of this view have been written; None if it looks at the memory in another way."""
        units = self._units(tensor)
        return None if units is None else units[..., 0] if units.shape[-1] == 1 else units.all(-1)

    def _units(self, tensor: torch.Tensor) -> Any:
        """The same, with those of each element in one more dimension, to be written through."""
        per_element, rest = divmod(tensor.itemsize, self._unit)
        if rest or not tensor.numel():
            return None
        strides = [stride * per_element for stride in tensor.stride()]
        begin = int(tensor.storage_offset()) * per_element
        reach = sum((size - 1) * stride for size, stride in zip(tensor.shape, strides, strict=True))
        if begin + reach + per_element > self.written.size:
            return None  # other memory, which lies where that did
        shape = (*tensor.shape, per_element)
        return np.lib.stride_tricks.as_strided(self.written[begin:], shape, (*strides, 1))


def shadows_of(tensors: Iterable[torch.Tensor]) -> dict[int, Shadow]:
    """One for each memory, in the smallest type of those that look at it."""
    finest: dict[int, torch.Tensor] = {}
    for tensor in tensors:
        known = finest.setdefault(storage_of(tensor), tensor)
        if tensor.itemsize < known.itemsize:
            finest[storage_of(tensor)] = tensor
    return {at: Shadow(tensor) for at, tensor in finest.items()}


class Seen(weakref.ref[torch.Tensor]):
    """A reference of the audit's own to a tensor."""


@contextmanager
def unseen_writes(shadows: Mapping[int, Shadow], tensors: Iterable[torch.Tensor]) -> Iterator[None]:
    """Memory of the host's that changes in here where nobody has noted it counts as written as a whole: what
    NumPy writes, nobody tells."""
    before = [(Seen(tensor), clone(tensor)) for tensor in tensors if tensor.device.type == "cpu"]
    del tensors  # where the last name of one ends in here, it ends
    yield
    for reference, held in before:
        tensor = reference()
        shadow = None if tensor is None else shadows.get(storage_of(tensor))
        if tensor is None or shadow is None or tensor.shape != held.shape:
            continue
        view = shadow.view(tensor)
        if view is not None and bool((_differs(held, clone(tensor)) & ~view).any()):
            shadow.note_write(None)


def _differs(one: torch.Tensor, other: torch.Tensor) -> np.ndarray:
    """Which elements of two copies have other bits."""
    one_bits, other_bits = (as_bytes(t).numpy().reshape(*t.shape, t.itemsize) for t in (one, other))
    apart: np.ndarray = (one_bits != other_bits).any(-1)
    return apart


class RowsWritten:
    """Which elements of a tensor `vary` has written, request by request."""

    def __init__(self, tensor: torch.Tensor):
        self._tensor, shape = Seen(tensor), tuple(tensor.shape)
        self.earlier = np.zeros(shape, dtype=bool)  # in a request before the last one
        self.now = np.zeros(shape, dtype=bool)
        self.cleared = np.zeros(shape, dtype=bool)  # behind the real rows, and in none of those since
        self._has_led = True  # in each request that has written
        self.marks = set[float]()  # numbers with which a request has cleared what it did

    def is_of(self, tensor: torch.Tensor) -> bool:
        return self._tensor() is tensor and self.now.shape == tensor.shape

    def note(self, written: np.ndarray, rows: int) -> None:
        """Of one more request, in which so many rows are real."""
        self.earlier |= self.now
        self.now = written.copy()
        self._has_led &= self._is_led(rows) or not written.any()
        if (tensor := self._tensor()) is not None and tensor.dtype.is_floating_point:
            there = clone(tensor)[rows:][torch.from_numpy(written[rows:])].double().unique()
            self.marks |= set(there.tolist() if len(there) == 1 else ())
        self.cleared[rows:] |= written[rows:]
        self.cleared[:rows] &= ~written[:rows]

    def leads(self, rows: int) -> bool:
        """Whether what was written, each time, are the first rows, one after the other, and as many as were
        real: not a slot or a block of a pool, or one place of a ring."""
        return self._has_led and self._is_led(rows)

    def _is_led(self, rows: int) -> bool:
        in_row = [bool(row.any()) for row in self.now]
        num_first = next((number for number, is_written in enumerate(in_row) if not is_written), len(in_row))
        return num_first >= max(1, min(rows, len(in_row))) and not any(in_row[num_first:])

    def has_cleared(self, tensor: torch.Tensor, rows: int, sizes: Set[int]) -> bool:
        """Whether all that lies behind the real rows has been written there, since those were real, or is as
        if it had been."""
        return bool((self.now | self.cleared | self._marked(tensor, rows, sizes))[rows:].all())

    def _marked(self, tensor: torch.Tensor, rows: int, sizes: Set[int]) -> np.ndarray:
        """Rows that nobody has had, and which hold what `vary` clears with, where it clears all others."""
        cleared = self.now | self.cleared
        is_of_rows = not sizes or len(tensor) in sizes
        if not (self.marks and is_of_rows) or (self.earlier & ~cleared)[rows:].any():
            return np.zeros_like(cleared)
        marked: np.ndarray = np.isin(clone(tensor).double().numpy(), [*self.marks])
        return marked & ~(cleared | self.earlier)

    def behind(self, tensor: torch.Tensor, rows: int, sizes: Set[int]) -> np.ndarray:
        """What may hold anything behind the real rows, where results have so many rows in all (`sizes`).

        What stands there from the beginning may say that a row is nobody's, if it is an integer, an infinity,
        in a tensor that has not the rows of the results, or what `vary` has cleared others with; and so does
        what `vary` has written there itself.
        """
        is_of_rows = not sizes or len(tensor) in sizes
        left: np.ndarray = ~self.now
        if is_of_rows:
            left &= ~self.cleared
        if not (is_of_rows and tensor.dtype.is_floating_point):
            left &= self.earlier
        left[:rows] = False
        if not left.any():
            return left
        left &= ~(is_infinite(tensor) | self._marked(tensor, rows, sizes))
        return left


class RowsOfAll:
    """The same of tensors, as far as `vary` writes in them."""

    def __init__(self) -> None:
        self._known: dict[int, RowsWritten] = {}  # by what names the tensor

    def note(self, tensor: torch.Tensor, written: np.ndarray, rows: int) -> None:
        known = self.of(tensor)
        if known is None and written.any():
            known = self._known[id(tensor)] = RowsWritten(tensor)
        if known is not None:
            known.note(written, rows)

    def of(self, tensor: torch.Tensor) -> RowsWritten | None:
        """None where it has written nothing, or that is another tensor."""
        known = self._known.get(id(tensor))
        return known if known is not None and known.is_of(tensor) else None


def is_infinite(tensor: torch.Tensor) -> np.ndarray:
    """Which elements are infinite."""
    if not (tensor.dtype.is_floating_point or tensor.dtype.is_complex):
        return np.zeros(tuple(tensor.shape), dtype=bool)
    held = clone(tensor)
    held = held.float() if held.itemsize == 1 else held  # torch asks no float of 8 bits
    infinite: np.ndarray = torch.isinf(held).numpy()
    return infinite


@contextmanager
def swappable() -> Iterator[None]:
    """`torch.utils.swap_tensors` refuses what anybody refers to weakly: in here an audit is nobody."""

    def others(tensor: torch.Tensor) -> list[Any]:
        return [reference for reference in weakref.getweakrefs(tensor) if type(reference) is not Seen]

    with patch.object(torch.utils, "weakref", SimpleNamespace(getweakrefs=others)):
        yield


class Saved:
    """Contents of tensors before somebody writes them: copied to the host once, put back in reverse order. As
    a context it puts them back when that is left."""

    def __init__(self, tensors: Iterable[torch.Tensor] = ()) -> None:
        self._kept: dict[tuple[Any, ...], tuple[torch.Tensor, torch.Tensor]] = {}
        for tensor in tensors:
            self.save(tensor)

    def save(self, tensor: torch.Tensor) -> None:
        """Remember what a tensor holds, unless that has been done."""
        key = key_of(tensor)
        if key not in self._kept and has_memory(tensor):
            self._kept[key] = (tensor, clone(tensor))

    def restore(self) -> None:
        """Memory of the host's that nobody has written is let be: it may be a file that nobody may write."""
        kept = reversed(self._kept.values())
        put(
            (tensor, held) for tensor, held in kept if tensor.device.type != "cpu" or not _holds(tensor, held)
        )

    def __enter__(self) -> "Saved":
        return self

    def __exit__(self, *exception: object) -> None:
        self.restore()

    def items(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        return list(self._kept.values())


def _holds(tensor: torch.Tensor, content: torch.Tensor) -> bool:
    """Whether it has the bits of a copy that was made of it."""
    if not has_memory(tensor):
        return True
    is_like = (tensor.shape, tensor.dtype) == (content.shape, content.dtype)
    return is_like and not bool(_differs(content, clone(tensor)).any())


def writable(tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """Without those of the host's memory that this process may only read, like a file that is mapped so.
    Linux tells; what it keeps free there, as for a GPU's memory, may not be read either."""
    closed = list[range]()
    with suppress(OSError):
        told = (line.split(maxsplit=2) for line in Path("/proc/self/maps").read_text().splitlines())
        ends = (at.split("-") for at, may, *_ in told if may.startswith("r-"))
        closed = [range(int(begin, 16), int(end, 16)) for begin, end in ends]
    return [t for t in tensors if t.is_cuda or not any(storage_of(t) in span for span in closed)]


def put(contents: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Let tensors hold these contents."""
    with torch.inference_mode():
        for tensor, content in contents:
            if not has_memory(tensor):
                continue
            once = _unexpanded(tensor)
            once.copy_(content[tuple(map(slice, once.shape))])


def put_pattern(tensor: torch.Tensor, mask: np.ndarray, which: int, is_known: bool = True) -> None:
    """Let elements of a tensor hold a pattern. Integers get what other rows hold at the same place, or 0, if
    it `is_known` which that is: they may be indices or addresses, and on a GPU one that leads nowhere ends
    the process."""
    value = pattern(tensor.dtype, which)
    if is_known and is_integer(tensor):
        put_where(tensor, mask, torch.from_numpy(known_numbers(clone(tensor).numpy())[bool(value)]))
    else:
        put_where(tensor, mask, torch.full((), value, dtype=tensor.dtype))


def is_integer(tensor: torch.Tensor) -> bool:
    dtype = tensor.dtype
    return not (dtype.is_floating_point or dtype.is_complex or dtype is torch.bool)


def known_numbers(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of each column the least number that is none below 0, and the one behind it; where there is but one of
    them, 0 and that."""
    most = np.iinfo(rows.dtype).max  # stands for none
    rows = np.atleast_1d(rows)
    least = np.where(rows < 0, most, rows).min(axis=0)
    behind = np.where(rows > least, rows, most).min(axis=0)
    is_one = behind == most
    first, second = np.where(is_one, 0, least), np.where(is_one, np.where(least == most, 0, least), behind)
    return np.asarray(first, rows.dtype), np.asarray(second, rows.dtype)


def put_where(tensor: torch.Tensor, mask: np.ndarray, content: torch.Tensor) -> None:
    """Let elements of a tensor hold what a copy holds. By bytes: torch does that for some types alone."""
    held = clone(tensor).contiguous()
    to, of = (as_bytes(t).numpy().reshape(-1, t.itemsize) for t in (held, content.expand(held.shape)))
    to[mask.ravel()] = of[mask.ravel()]
    put([(tensor, held)])


def _unexpanded(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory, and no element of it twice: torch writes to nothing that was expanded."""
    if tensor.layout is torch.strided and torch._debug_has_internal_overlap(tensor) == 1:
        return tensor[tuple(slice(None if stride else 1) for stride in tensor.stride())]
    return tensor


def num_owners(storage: torch.UntypedStorage) -> int:
    """How many tensors hold this memory."""
    count: int = torch._C._storage_Use_Count(storage._cdata)
    return count - 1  # one is the storage that was passed


def key_of(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Which memory a tensor is, and how it looks at it."""
    return tensor.data_ptr(), tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype


def strides(tensor: torch.Tensor) -> tuple[int, ...]:
    """How far its next element is, in each dimension that has one."""
    both = zip(tensor.shape, tensor.stride(), strict=True) if tensor.layout is torch.strided else ()
    return tuple(stride for size, stride in both if size > 1)


def clone(tensor: torch.Tensor) -> torch.Tensor:
    """A copy in host memory, which no graph and no autograd knows of. On the device it would lie beside a
    pool that may have taken all there is: a step that writes a KV cache is copied several times over."""
    with torch.inference_mode():
        if is_given_back(tensor):
            return torch.zeros(tensor.shape, dtype=tensor.dtype)
        dense = (tensor if tensor.layout is torch.strided else tensor.to_dense()).detach()
        return _unexpanded(dense).to("cpu", copy=True).expand(dense.shape)


def has_memory(tensor: torch.Tensor) -> bool:
    """Whether it is one piece of memory, and has it."""
    with torch._C.DisableTorchFunction():
        is_one = tensor.layout is torch.strided and not (tensor.is_nested or tensor.is_quantized)
        return is_one and not tensor.is_meta and not is_given_back(tensor)


def is_given_back(tensor: torch.Tensor) -> bool:
    """Whether its memory was: sharded weights do that, and engines that sleep. Who looks there ends the
    process."""
    with torch._C.DisableTorchFunction():
        storage = storage_or_none(tensor) if tensor.layout is torch.strided else None
        return storage is not None and not storage.nbytes() and bool(tensor.numel())


def as_bytes(copied: torch.Tensor) -> torch.Tensor:
    """What a copy holds, in a row. One element counts as contiguous whatever its stride is, and only where
    that is 1 torch looks at its bytes."""
    return copied.contiguous().as_strided((copied.numel(),), (1,)).view(torch.uint8)


def storage_of(tensor: torch.Tensor) -> int:
    """The address at which a tensor's memory begins; 0 if it has none."""
    if type(tensor) is torch.Tensor:  # most are, and each op asks for several
        return _begin(tensor)
    with torch._C.DisableTorchFunction():
        return _begin(tensor)


def _begin(tensor: torch.Tensor) -> int:
    storage = storage_or_none(tensor)
    return 0 if storage is None or tensor.is_meta else storage.data_ptr()
