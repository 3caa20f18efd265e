"""Streams and events on a machine without a GPU: what `torch.cuda` has by these names, as a model.

Work runs at once, whatever stream it is issued on: of the orders that a GPU may take that is one. A capture
takes what is issued on its own stream, and on those that were made to wait for it; the rest runs, unrecorded.
Of each piece of captured work it is known what has to be done before it, so the graph can be replayed in any
other order that its edges allow: `other_orders`.
"""

import os
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from time import perf_counter
from typing import Any, NamedTuple
from unittest.mock import patch

import torch

from mrv2lab.errors import CaptureError

Mark = dict[int, int]  # of each stream up to which of its work something is known to be done


class Clocks:
    """What of every stream's work is done before what is issued on a stream now begins: vector clocks."""

    def __init__(self) -> None:
        self._known: defaultdict[int, Counter[int]] = defaultdict(Counter)

    def issue(self, stream: int) -> int:
        """The number, on its stream, of a piece of work that is issued now."""
        self._known[stream][stream] += 1
        return self._known[stream][stream]

    def mark(self, stream: int) -> Mark:
        """What is done once all that has been issued on a stream is."""
        return dict(self._known[stream])

    def wait(self, stream: int, mark: Mark) -> None:
        """What is issued on a stream from now on begins when all that a mark tells is done."""
        self._known[stream] |= Counter(mark)

    def is_done(self, of: int, number: int, before: int) -> bool:
        """Whether work of a stream is done before what is issued on another one now."""
        return self._known[before][of] >= number


class Issued(NamedTuple):
    """A piece of captured work: its stream, its number there, and what is done before it begins."""

    stream: int
    number: int
    after: Mark


class Ties:
    """The streams of a capture, and what was issued on them."""

    def __init__(self, origin: "Stream"):
        self.origin, self.streams = origin.stream_id, {origin.stream_id}
        self.issued: list[Issued] = []
        self.clocks = Clocks()

    def issue(self) -> None:
        stream = current_stream().stream_id
        after = self.clocks.mark(stream)
        self.issued.append(Issued(stream, self.clocks.issue(stream), after))

    def join(self, stream: int, mark: Mark) -> None:
        self.streams.add(stream)
        self.clocks.wait(stream, mark)
        self.clocks.issue(stream)

    def require_joined(self) -> None:
        for stream in self.streams - {self.origin}:
            if not self.clocks.is_done(stream, self.clocks.mark(stream)[stream], self.origin):
                raise CaptureError("a stream that was tied to the capture was not joined before its end")


def other_orders(issued: list[Issued]) -> Iterator[list[int]]:
    """Orders in which the same graph may run on a GPU: later streams first, and last."""
    streams = list(dict.fromkeys(one.stream for one in issued))
    for preferred in (streams[::-1], streams):
        left = {s: [i for i, one in enumerate(issued) if one.stream == s] for s in streams}
        order = list[int]()
        while any(left.values()):
            due = {s: issued[rest[0]].number for s, rest in left.items() if rest}
            ready = (
                s for s in preferred if left[s]
                and all(due.get(t, n + 1) > n for t, n in issued[left[s][0]].after.items() if t != s)
            )  # fmt: skip
            order.append(left[next(ready)].pop(0))
        yield order


_numbers = count(1)
_now = threading.local()


class _Done:
    """Work has run by the time that anybody asks."""

    def synchronize(self) -> None: ...

    def query(self) -> bool:
        return True


class Stream(_Done):
    """`torch.cuda.Stream`: a name, and what waits for what."""

    def __init__(self, device: Any = None, priority: int = 0, **kwargs: Any):
        self.stream_id = self.cuda_stream = next(_numbers)
        self.device, self.priority = device, priority

    def wait_event(self, event: "Event") -> None:
        event.wait(self)

    def wait_stream(self, stream: "Stream") -> None:
        self.wait_event(stream.record_event())

    def record_event(self, event: "Event | None" = None) -> "Event":
        event = event or Event()
        event.record(self)
        return event

    def __enter__(self) -> "Stream":
        self._within = stream(self)
        self._within.__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        self._within.__exit__(*exception)


class Event(_Done):
    """`torch.cuda.Event`: a place in a stream. Times between two are the host's: work runs at once."""

    def __init__(self, enable_timing: bool = False, **kwargs: Any):
        self._ties: Ties | None = None  # of the capture in which it was recorded
        self._mark: Mark | None = None

    def record(self, stream: Stream | None = None) -> None:
        at, ties = (stream or current_stream()).stream_id, _ties()
        self._at = perf_counter()
        self._ties = ties if ties is not None and at in ties.streams else None
        self._mark = self._ties.clocks.mark(at) if self._ties else {}

    def wait(self, stream: Stream | None = None) -> None:
        at, ties = (stream or current_stream()).stream_id, _ties()
        if self._ties is not None and self._ties is not ties:
            raise CaptureError("waiting for an event that was recorded in a capture, outside of it")
        if self._ties is not None and self._mark is not None:
            self._ties.join(at, self._mark)
        elif ties is not None and at in ties.streams and self._mark is not None:
            raise CaptureError("the capture waits for work on a stream that is not captured")

    def elapsed_time(self, end: "Event") -> float:
        """Milliseconds between what is recorded here and there."""
        return 1000 * (end._at - self._at)


def current_stream(device: Any = None) -> Stream:
    """The stream on which this thread issues work."""
    if not hasattr(_now, "stream"):
        _now.stream = _DEFAULT
    return _now.stream  # type: ignore[no-any-return]


def default_stream(device: Any = None) -> Stream:
    """The stream that is current where nobody has chosen another one."""
    return _DEFAULT


def set_stream(stream: Stream | None) -> None:
    """Let work be issued on a stream from now on."""
    if stream is not None:
        _now.stream = stream


class StreamContext:
    """Within this context work is issued on a stream. `torch.cuda` has it by two names."""

    def __init__(self, chosen: Stream | None):
        self._chosen = chosen

    def __enter__(self) -> None:
        self._before = current_stream()
        set_stream(self._chosen)

    def __exit__(self, *exception: Any) -> None:
        set_stream(self._before)


stream = StreamContext
_DEFAULT = Stream()


@contextmanager
def captured() -> Iterator[Ties]:
    """A capture goes on, on a stream of its own."""
    origin = Stream()
    _now.ties = ties = Ties(origin)
    try:
        with stream(origin):
            yield ties
    finally:
        _now.ties = None


def _ties() -> Ties | None:
    return getattr(_now, "ties", None)


def is_captured() -> bool:
    """Whether what this thread issues on its current stream is captured."""
    ties = _ties()
    return ties is not None and current_stream().stream_id in ties.streams


with patch.dict(os.environ, PYTORCH_NVML_BASED_CUDA_CHECK="1"):  # or no process forked off could use the GPU
    _has_gpu = torch.cuda.is_available()
if not _has_gpu:
    for _model in (Stream, StreamContext, Event, current_stream, default_stream, set_stream):
        setattr(torch.cuda, _model.__name__, _model)
    torch.cuda.stream = StreamContext  # type: ignore[assignment,misc]
    torch.cuda._sleep = lambda cycles: None  # type: ignore[attr-defined]
    torch.Tensor.record_stream = lambda self, s: None  # type: ignore[assignment,method-assign]
