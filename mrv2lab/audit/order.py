"""What is done before what: the work of a pass by stream, and which memory it touches.

Events tie streams, waits tie the host. Two that touch the same memory, one of which writes it, with nothing
that orders them, are a race, whoever has won it this time. An `Order` knows that of one pass or one capture;
`Ordering` tells it what a recorder meets.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import wraps
from math import prod
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest.mock import patch

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from mrv2lab.audit.memory import storage_of
from mrv2lab.audit.ops import Given, Schema
from mrv2lab.audit.trace import Event
from mrv2lab.errors import HostSyncError
from mrv2lab.graphs import CapturedGraph
from mrv2lab.graphs.guard import _HOST_METHODS, is_mask
from mrv2lab.graphs.streams import Clocks, Mark

if TYPE_CHECKING:
    from mrv2lab.audit.recorder import Recorder


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
        self._told = set[int]()  # streams that begin behind all that the host knows to be done
        self.by_memory: dict[int, dict[tuple[int, Touched], Access]] = {}
        self._hosts: set[int] = set()  # where memory of the host's lies
        self._reached: dict[int, int] = {}  # how far a stream was when the program recorded an event on it
        # By `id`, with the event: torch's leave weak references to them dangling.
        self._marks: dict[int, tuple[Any, Mark]] = {}

    @property
    def num_streams(self) -> int:
        return len(self._streams - {HOST})

    def work(
        self, stream: int, name: str, position: int, given: Iterable[Given], partly: Iterable[Given] = ()
    ) -> None:
        """Work is issued on a stream, or done by the host. It touches `given`, and parts of `partly`."""
        number = self._issue(stream)
        for some, is_partly in (given, False), (partly, True):
            for one in some:
                if one.storage and one.tensor.numel():
                    touched = Touched.of(one, is_partly)
                    self._touch(Access(stream, number, name, position, touched, self.call))

    def replay(self, stream: int, captured: "Order") -> None:
        """A graph is replayed on a stream: one piece of work, by whatever of it touches memory."""
        number = self._issue(stream)
        for access in (one for accesses in captured.by_memory.values() for one in accesses.values()):
            self._touch(access._replace(stream=stream, number=number, call=self.call))

    def _issue(self, stream: int) -> int:
        if stream == HOST:
            self._told.clear()
        elif stream not in self._told:  # since then the host knows no more
            self._clocks.wait(stream, self._clocks.mark(HOST))
            self._told.add(stream)
        self._streams.add(stream)
        return self._clocks.issue(stream)

    def _touch(self, access: Access) -> None:
        accesses = self.by_memory.setdefault(access.touched.storage, {})
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

    def forget(self, storage: int) -> None:
        self.by_memory.pop(storage, None)
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
        self._told.clear()

    def synchronize(self, stream: int | None = None) -> None:
        """The host waits for a stream, or for all."""
        for one in self._streams if stream is None else {stream}:
            self._clocks.wait(HOST, self._clocks.mark(one))
        self._told.clear()


class HostReads(TorchFunctionMode):
    """Sees where the host reads a tensor as no op does: of the device's it waits for the current stream."""

    def __init__(self, seen: Callable[[str, torch.Tensor], None]):
        super().__init__()
        self._seen = seen

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _HOST_METHODS:
            self._seen(_HOST_METHODS[func], args[0])
        return func(*args, **(kwargs or {}))


Seams = list[tuple[Any, str]]
_STREAM, _EVENT = torch.cuda.Stream, torch.cuda.Event
WAITS: Seams = [(owner, "synchronize") for owner in (torch.cuda, torch.accelerator, _STREAM, _EVENT)]
_TIES: Seams = [(_EVENT, "record"), (_EVENT, "wait"), (_STREAM, "wait_stream")]
_TIES += [(_STREAM, "query"), (_EVENT, "query")]


class Ordering:
    """What one recorder meets: its ops and launches, replays, events, waits, and what the host reads."""

    def __init__(self, recorder: "Recorder"):
        self._recorder, self._session, self._order = recorder, recorder.session, recorder.order
        self._joins = False  # a stream waits for another: the event in between is torch's

    @property
    def now(self) -> Order | None:
        """That of the capture under way, where work belongs to it."""
        capture = self._recorder.capture
        return capture.order if capture is not None and self._session.is_captured else self._order

    # ---- work ----

    def op(
        self, event: Event, schema: Schema, scalars: Any, tensors: list[Given], made: dict[int, torch.Tensor]
    ) -> None:
        """What an op touches, and whether the host waits for it. Data of Python's is the host's."""
        if (order := self.now) is None:
            return
        passed = {given.storage for given in tensors}
        results = (Given("result", t, True, storage) for storage, t in made.items() if storage not in passed)
        given = [*tensors, *results]
        given = [one for one in given if one.storage not in self._recorder.from_python]
        hosts = [one for one in given if not self._session.on_device(one.tensor)]
        for one in hosts:
            order.meet_host(one.storage)
        if len(hosts) == len(given):
            self.host_touches(event.name, hosts)
            return
        shared = [one for one in given if self._session.is_shared(one.tensor)] if hosts else given
        partly = [one for one in shared if one.label in ("self", "weight")] if schema.indexes else []
        wholly = [one for one in shared if one not in partly] if partly else shared
        order.work(self._session.stream, event.name, event.key[0], wholly, partly)
        if order is not self._order:
            return
        is_staging = bool(hosts) and all(self._session.is_shared(one.tensor) for one in hosts)
        order.is_used |= is_staging
        if not (hosts or schema.waits):
            return
        indexes = (one for one in tensors if one.label.partition("[")[0] in schema.indexes)
        waits = schema.waits and (not schema.indexes or any(is_mask(one.tensor) for one in indexes))
        if waits or (hosts and not (is_staging and dict(scalars).get("non_blocking"))):
            order.synchronize(self._session.stream)

    def launch(self, event: Event, tensors: list[Given]) -> None:
        """What a kernel touches; of what was there before it, maybe a part."""
        if (order := self.now) is not None:
            own = [given for given in tensors if given.storage in self._recorder.born]
            kept = [given for given in tensors if given.storage not in self._recorder.born]
            order.work(self._session.stream, event.name, event.key[0], own, kept)

    def replay(self, graph: CapturedGraph) -> None:
        """A graph is replayed on the current stream. What one touches that was there before, nobody knows."""
        captured = self._session.graphs.get(graph)
        if self._order is not None and captured is not None:
            self._order.replay(self._session.stream, captured)
        elif self._order is not None:
            self._order.has_unknown = True

    def host_touches(self, name: str, given: list[Given]) -> None:
        """The host works on its own memory, of which the device may know."""
        if self._order is None:
            return
        for one in given:
            self._order.meet_host(one.storage)
        if touched := [one for one in given if one.storage in self._order.by_memory]:
            self._order.work(HOST, name, self._recorder.trace.lines.current, touched)

    def host_reads(self, name: str, tensor: torch.Tensor) -> None:
        """As no op does: of the device's memory it waits for the current stream."""
        if self._recorder.in_capture or self._order is None:
            return
        if self._session.on_device(tensor):
            self._order.synchronize(self._session.stream)
        else:
            self.host_touches(f"Tensor.{name}", [Given("self", tensor, False, storage_of(tensor))])

    # ---- events and waits ----

    def waits(self) -> AbstractContextManager[None]:
        """Within this context the host's waits are noted; in a capture there are none."""
        return patched(WAITS, self._waiting)

    def ties(self) -> AbstractContextManager[None]:
        """And what is recorded on streams, waited for and asked."""
        return patched(_TIES, self._tying)

    def _waiting(self, original: Any) -> Any:
        @wraps(original)  # lines of the user's may look at it
        def synchronize(*args: Any, **kwargs: Any) -> Any:
            if self._recorder.in_capture:
                told = "makes the host wait for the device during capture"
                raise HostSyncError(f"{original.__name__}() {told}")
            self._host_waits(*args[:1])
            return original(*args, **kwargs) if torch.cuda.is_available() else None

        return synchronize

    def _tying(self, original: Any) -> Any:
        name = original.__name__

        @wraps(original)
        def tie(*args: Any, **kwargs: Any) -> Any:
            self._joins |= name == "wait_stream"
            try:
                result = original(*args, **kwargs)
            finally:
                self._joins &= name != "wait_stream"
            if name == "query" and result:
                self._host_waits(*args)
            elif name in ("record", "wait") and not self._recorder.quiet:
                self._tied(name, *args, **kwargs)
            return result

        return tie

    def _host_waits(self, waited: Any = None) -> None:
        """The host knows that all before an event, on a stream, or all that there is, is done."""
        if self._order is not None and isinstance(waited, torch.cuda.Event):
            self._order.wait(waited, HOST)
        elif self._order is not None:
            is_stream = isinstance(waited, torch.cuda.Stream)
            self._order.synchronize(waited.cuda_stream if is_stream else None)

    def _tied(self, name: str, event: Any, stream: Any = None) -> None:
        """An event has been recorded on a stream, or a stream waits for it."""
        capture = self._recorder.capture
        order = self._order if capture is None else capture.order
        at = self._session.stream if stream is None else stream.cuda_stream
        if order is not None and name == "record":
            order.record(event, at, not self._joins)
        elif order is not None:
            order.wait(event, at)


@contextmanager
def patched(seams: Seams, make: Callable[[Any], Any]) -> Iterator[None]:
    """Replace functions of these owners and names for a while by what `make` makes of them."""
    with ExitStack() as stack:
        for owner, name in seams:
            stack.enter_context(patch.object(owner, name, make(getattr(owner, name))))
        yield
