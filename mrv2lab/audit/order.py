"""What is done before what: the work of a pass by stream, and which memory it touches.

Events tie streams, waits tie the host. Two that touch the same memory, one of which writes it, with nothing
that orders them, are a race, whoever has won it this time.
"""

from collections.abc import Callable, Iterable, Iterator
from math import prod
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from mrv2lab.audit.ops import Given
from mrv2lab.graphs.guard import _HOST_METHODS
from mrv2lab.graphs.streams import Clocks, Mark

_MOST_VIEWS = 1024  # of one memory that are remembered
HOST = -1  # its number among the streams: what it does is done before whatever it issues next


class Touched(NamedTuple):
    """Memory that a piece of work reads or writes: a view of a storage."""

    storage: int
    address: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]  # elements
    itemsize: int  # bytes
    written: bool
    is_partly: bool  # a part of it, and nobody knows which: rows that an index picks, or a kernel

    @classmethod
    def of(cls, given: Given, is_partly: bool) -> "Touched":
        _, tensor, written, storage = given
        shape, stride = tuple(tensor.shape), tuple(tensor.stride())
        return cls(storage, tensor.data_ptr(), shape, stride, tensor.element_size(), written, is_partly)

    def surely_meets(self, other: "Touched") -> bool:
        """Of two that conflict, whether what is known of them says where."""
        if self.is_partly and other.is_partly:
            return False
        sizes = prod(self.shape), prod(other.shape)
        return not (self.is_partly and sizes[0] > sizes[1]) and not (other.is_partly and sizes[1] > sizes[0])

    def conflicts(self, other: "Touched") -> bool:
        """Whether one of two writes what the other touches."""
        return (self.written or other.written) and np.shares_memory(self._array(), other._array())

    def _array(self) -> np.ndarray:
        """An array in the same place, never looked into: it may lie on a device."""
        at = {"data": (self.address, True), "shape": self.shape, "version": 3}
        at |= {"strides": tuple(n * self.itemsize for n in self.stride), "typestr": f"|V{self.itemsize}"}
        return np.asarray(SimpleNamespace(__array_interface__=at))


class Access(NamedTuple):
    """Who has touched memory: the work's stream, its number there, its name, and the line that issued it."""

    stream: int
    number: int
    name: str
    position: int
    touched: Touched
    call: int  # of the program's functions, counted: its caller may wait between two


class Race(NamedTuple):
    """Two that nothing orders, the one that was issued first and the other."""

    first: Access
    second: Access
    is_sure: bool  # they touch the same elements
    is_marked: bool  # the program has recorded an event behind the first, or both are of one call

    @property
    def is_waited(self) -> bool:
        """Whether the caller may have the host wait between the two."""
        return self.second.stream == HOST and not self.is_marked

    @property
    def is_wrong(self) -> bool:
        return self.is_sure and not self.is_waited


class Order:
    """Who has touched what on which stream so far."""

    def __init__(self) -> None:
        self.races: list[Race] = []
        self.call = 0  # whose turn it is
        self.has_unknown = False  # graphs have been replayed of which nobody knows what they touch
        self.is_used = False  # there are several streams, or copies beside the host
        self._clocks, self._streams = Clocks(), set[int]()
        self._by_memory: dict[int, dict[tuple[int, Touched], Access]] = {}
        self._hosts: set[int] = set()  # where memory of the host's lies
        self._reached: dict[int, int] = {}  # how far a stream was when the program recorded an event on it
        # By `id`, with the event: torch's leave weak references to them dangling.
        self._marks: dict[int, tuple[Any, Mark]] = {}

    @property
    def num_streams(self) -> int:
        return len(self._streams - {HOST})

    def __iter__(self) -> Iterator[Access]:
        for accesses in self._by_memory.values():
            yield from accesses.values()

    def work(
        self, stream: int, name: str, position: int, given: Iterable[Given], partly: Iterable[Given] = ()
    ) -> None:
        """Work is issued on a stream, or done by the host. It touches `given`, and parts of `partly`."""
        number = self._issue(stream)
        for one, is_partly in [*((g, False) for g in given), *((g, True) for g in partly)]:
            if one.storage and one.tensor.numel():
                self._touch(Access(stream, number, name, position, Touched.of(one, is_partly), self.call))

    def replay(self, stream: int, captured: "Order") -> None:
        """A graph is replayed on a stream: one piece of work, by whatever of it touches memory."""
        number = self._issue(stream)
        for access in captured:
            self._touch(access._replace(stream=stream, number=number, call=self.call))

    def _issue(self, stream: int) -> int:
        if stream != HOST:
            self._clocks.wait(stream, self._clocks.mark(HOST))
        self._streams.add(stream)
        return self._clocks.issue(stream)

    def _touch(self, access: Access) -> None:
        accesses = self._by_memory.setdefault(access.touched.storage, {})
        for other in accesses.values():
            self.is_used |= other.stream != access.stream
            is_done = self._clocks.is_done(other.stream, other.number, access.stream)
            if not is_done and other.touched.conflicts(access.touched):
                is_sure = other.touched.surely_meets(access.touched)
                is_marked = self._reached.get(other.stream, 0) >= other.number or other.call == access.call
                self.races.append(Race(other, access, is_sure, is_marked))
        accesses[access.stream, access.touched] = access
        if len(accesses) > _MOST_VIEWS:
            del accesses[next(iter(accesses))]

    def has_touched(self, storage: int) -> bool:
        """Whether work has touched this memory of the host's."""
        return storage in self._by_memory

    def forget(self, storage: int) -> None:
        """Memory is lent anew."""
        self._by_memory.pop(storage, None)
        self._hosts.discard(storage)

    def meet_host(self, storage: int) -> None:
        """Memory is the host's from now on: on the emulator it is made like the device's."""
        if storage not in self._hosts:
            self.forget(storage)
            self._hosts.add(storage)

    def record(self, event: Any, stream: int, is_programs: bool) -> None:
        """An event is recorded on a stream: by the program, or by a stream that waits for another."""
        self.is_used = True
        mark = self._clocks.mark(stream)
        self._marks[id(event)] = (event, mark)
        if is_programs:
            self._reached[stream] = mark.get(stream, 0)

    def wait(self, event: Any, stream: int) -> None:
        """A stream, or the host, waits for an event."""
        self.is_used = True
        if id(event) in self._marks:
            self._clocks.wait(stream, self._marks[id(event)][1])

    def synchronize(self, stream: int | None = None) -> None:
        """The host waits for a stream, or for all."""
        for one in self._streams if stream is None else {stream}:
            self._clocks.wait(HOST, self._clocks.mark(one))


class HostReads(TorchFunctionMode):
    """Sees where the host reads a tensor as no op does: of the device's it waits for the current stream."""

    def __init__(self, seen: Callable[[str, torch.Tensor], None]):
        super().__init__()
        self._seen = seen

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _HOST_METHODS:
            self._seen(_HOST_METHODS[func], args[0])
        return func(*args, **(kwargs or {}))
