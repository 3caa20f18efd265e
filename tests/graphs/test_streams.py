"""The model of streams: what is known to be done, and which orders a graph allows. See also test_fidelity."""

import pytest
import torch

from mrv2lab.errors import CaptureError
from mrv2lab.graphs import capture, streams
from mrv2lab.graphs.streams import Event, Stream, current_stream, default_stream, other_orders, stream


def issued_by(step):
    """For each piece of captured work its stream, in order of issue."""
    graph = capture(step, backend="emulated")
    return graph.issued


def diamond(first, second, x, y):
    """One piece of work, then one on each of two streams, then one."""
    x.add_(1)
    first.wait_stream(current_stream())
    second.wait_stream(current_stream())
    with stream(first):
        x.add_(1)
    with stream(second):
        y.add_(1)
        y.add_(1)
    current_stream().wait_stream(first)
    current_stream().wait_stream(second)
    x.add_(y)


def test_other_orders_keep_what_the_edges_say_and_nothing_else():
    first, second, x, y = Stream(), Stream(), torch.zeros(1), torch.zeros(1)
    orders = list(other_orders(issued_by(lambda: diamond(first, second, x, y))))
    assert orders == [[0, 2, 3, 1, 4], [0, 1, 2, 3, 4]]


def test_without_edges_the_side_comes_first_or_last():
    side, x, y = Stream(), torch.zeros(1), torch.zeros(1)

    def step():
        side.wait_stream(current_stream())
        x.add_(1)
        with stream(side):
            y.add_(1)
        current_stream().wait_stream(side)

    assert list(other_orders(issued_by(step))) == [[1, 0], [0, 1]]


def test_an_event_orders_what_comes_behind_the_wait_after_what_came_before_the_record():
    side, x, event = Stream(), torch.zeros(1), Event()

    def step():
        side.wait_stream(current_stream())
        x.add_(1)
        current_stream().record_event(event)
        x.add_(1)
        with stream(side):
            event.wait()
            x.add_(1)
        current_stream().wait_stream(side)

    assert list(other_orders(issued_by(step))) == [[0, 2, 1], [0, 1, 2]]


def test_an_event_of_a_capture_is_none_of_others():
    event, x = Event(), torch.zeros(1)
    capture(lambda: (event.record(), x.add_(1))[1], backend="emulated")
    with pytest.raises(CaptureError, match="recorded in a capture"):
        event.wait()
    with pytest.raises(CaptureError, match="recorded in a capture"):
        capture(lambda: (event.wait(), x.add_(1))[1], backend="emulated")


def test_the_stream_is_as_it_was_whatever_happens():
    assert current_stream() is default_stream()
    with pytest.raises(ZeroDivisionError), stream(Stream()):
        assert current_stream() is not default_stream()
        1 / 0  # noqa: B018
    with pytest.raises(ZeroDivisionError):
        capture(lambda: 1 / 0, backend="emulated")
    assert current_stream() is default_stream() and not streams.is_captured()
    with stream(None):
        assert current_stream() is default_stream()


def test_the_model_of_streams_is_no_hindrance_to_torch_compile():
    compiled = torch.compile(lambda x: torch.empty_like(x).fill_(2) + x, backend="eager", fullgraph=True)
    assert compiled(torch.ones(2)).tolist() == [3, 3]
    with torch.cuda.stream(torch.cuda.Stream()) as entered:
        assert entered is None and isinstance(torch.cuda.stream(None), torch.cuda.StreamContext)
