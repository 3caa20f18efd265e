"""Tells the order of a pass, and that of the capture under way, what a recorder meets: `order.Order`."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import torch

from mrv2lab.audit.memory import storage_of
from mrv2lab.audit.ops import Given, Schema
from mrv2lab.audit.order import HOST, Order
from mrv2lab.audit.trace import Event
from mrv2lab.errors import HostSyncError
from mrv2lab.graphs import CapturedGraph
from mrv2lab.graphs.guard import is_mask

if TYPE_CHECKING:
    from mrv2lab.audit.recorder import Recorder

Seams = list[tuple[Any, str]]
_WAITED = (torch.cuda.Stream, torch.cuda.Event)
WAITS: Seams = [(owner, "synchronize") for owner in (torch.cuda, torch.accelerator, *_WAITED)]
_QUERIES: Seams = [(owner, "query") for owner in _WAITED]
_TIES: Seams = [(torch.cuda.Event, "record"), (torch.cuda.Event, "wait")]
_JOINS: Seams = [(torch.cuda.Stream, "wait_stream")]


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
        partly = [one for one in shared if schema.indexes and one.label in ("self", "weight")]
        wholly = [one for one in shared if one not in partly] if partly else shared
        order.work(self._session.stream, event.name, event.key[0], wholly, partly)
        if order is not self._order:
            return
        is_staging = bool(hosts) and all(self._session.is_shared(one.tensor) for one in hosts)
        order.is_used |= is_staging
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
        if touched := [one for one in given if self._order.has_touched(one.storage)]:
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

    @contextmanager
    def ties(self) -> Iterator[None]:
        """And what is recorded on streams, waited for and asked."""
        with patched(_TIES, self._tying), patched(_QUERIES, self._asking), patched(_JOINS, self._joining):
            yield

    def _waiting(self, original: Any) -> Any:
        def synchronize(*args: Any, **kwargs: Any) -> Any:
            if self._recorder.in_capture:
                told = "makes the host wait for the device during capture"
                raise HostSyncError(f"{original.__name__}() {told}")
            self._host_waits(*args[:1])
            return original(*args, **kwargs) if torch.cuda.is_available() else None

        return synchronize

    def _asking(self, original: Any) -> Any:
        def query(waited: Any) -> Any:
            if is_done := original(waited):
                self._host_waits(waited)
            return is_done

        return query

    def _host_waits(self, waited: Any = None) -> None:
        """The host knows that all before an event, on a stream, or all that there is, is done."""
        if self._order is not None and isinstance(waited, torch.cuda.Event):
            self._order.wait(waited, HOST)
        elif self._order is not None:
            is_stream = isinstance(waited, torch.cuda.Stream)
            self._order.synchronize(waited.cuda_stream if is_stream else None)

    def _tying(self, original: Any) -> Any:
        def tie(event: Any, stream: Any = None) -> Any:
            result = original(event) if stream is None else original(event, stream)
            capture = self._recorder.capture
            order = self._order if capture is None else capture.order
            at = self._session.stream if stream is None else stream.cuda_stream
            if order is not None and not self._recorder.quiet and original.__name__ == "record":
                order.record(event, at, not self._joins)
            elif order is not None and not self._recorder.quiet:
                order.wait(event, at)
            return result

        return tie

    def _joining(self, original: Any) -> Any:
        def wait_stream(*args: Any) -> Any:
            self._joins = True
            try:
                return original(*args)
            finally:
                self._joins = False

        return wait_stream


@contextmanager
def patched(seams: Seams, make: Callable[[Any], Any]) -> Iterator[None]:
    """Replace functions of these owners and names for a while by what `make` makes of them."""
    with ExitStack() as stack:
        for owner, name in seams:
            stack.enter_context(patch.object(owner, name, make(getattr(owner, name))))
        yield
