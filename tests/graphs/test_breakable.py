"""Captures that break at an op and resume behind it, and the rules that make their replays right."""

import functools
import threading

import pytest
import torch

from mrv2lab.errors import CaptureError
from mrv2lab.graphs import capture, host, new_pool, replayed
from mrv2lab.graphs.breakable import (
    BreakableCUDAGraphCapture,
    BreakableCUDAGraphWrapper,
    BreakError,
    eager_break_during_capture,
)

SCALE = host(torch.tensor([10.0]))  # what the host knows of the batch that runs now


@pytest.fixture(autouse=True)
def scale():
    SCALE[0] = 10.0
    return SCALE


@pytest.fixture
def x(device):
    return torch.arange(4.0, device=device)


@eager_break_during_capture
def scaled(values, output):
    """An op that reads host memory."""
    output.copy_(values * SCALE.item())


def model(x):
    """Work, an op that the capture breaks at, work."""
    output = torch.empty_like(x)
    scaled(x + 1, output)
    return output - 1


def test_breaks_at_the_op_and_replays_graph_op_graph(backend, x, scale):
    model(x)
    captured = BreakableCUDAGraphCapture(backend=backend)
    assert not captured.is_capturing
    with captured:
        y = model(x)
    assert (captured.num_graphs, captured.num_eager_breaks) == (2, 1)
    assert repr(captured) == "BreakableCUDAGraphCapture(graphs=2, eager_breaks=1)"
    with replayed() as graphs:
        captured.replay()
    assert graphs == captured.graphs
    assert y.tolist() == [9, 19, 29, 39]
    x.fill_(0)
    scale[0] = 5.0  # read afresh by the op
    captured.replay()
    assert y.tolist() == [4] * 4
    assert sum(captured.kernels().values()) == sum(len(graph.nodes) for graph in captured.graphs)


def test_without_a_break_the_host_value_is_frozen(backend, x, scale):
    model(x)
    graph = capture(lambda: model(x), backend=backend)  # a plain capture knows of no break
    scale[0] = 5.0
    graph.replay()
    assert graph.outputs.tolist() == [9, 19, 29, 39]


SEEN = []


@eager_break_during_capture
def remembers(values, output):
    SEEN.append((values.data_ptr(), output.data_ptr()))
    output.copy_(values)


def test_the_op_sees_the_captured_addresses_at_every_replay(backend, x):
    SEEN.clear()
    output = torch.zeros(4, device=x.device)
    with BreakableCUDAGraphCapture(backend=backend) as captured:
        remembers(x, output=output)
    captured.replay()
    captured.replay()
    assert len(SEEN) == 3
    assert set(SEEN) == {(x.data_ptr(), output.data_ptr())}


@eager_break_during_capture
def lends(values, output):
    output.copy_(values)


def test_the_op_keeps_no_memory_of_the_graph_alive(backend, x):
    def step():
        for _ in range(4):
            output = torch.empty(1 << 22, device=x.device)
            lends(output, output)
            del output

    step()
    pool = new_pool(backend)
    with BreakableCUDAGraphCapture(backend=backend, pool=pool) as captured:
        step()
    assert captured.num_eager_breaks == 4
    assert pool.num_bytes == (1 << 22) * 4  # one buffer of float32, lent four times
    captured.replay()


def test_an_op_called_by_a_broken_out_op_breaks_nothing_more(backend, x):
    with BreakableCUDAGraphCapture(backend=backend) as captured:
        calls_another(x, torch.empty_like(x))
    assert captured.num_eager_breaks == 1


@eager_break_during_capture
def calls_another(values, output):
    scaled(values, output)


# Rules.


@eager_break_during_capture
def returns_a_tensor(values):
    return values * 2


@eager_break_during_capture
def returns_a_number(values):
    return 3


@pytest.mark.parametrize(("op", "what"), [(returns_a_tensor, "a Tensor"), (returns_a_number, "a int")])
def test_an_op_that_returns_something_is_refused(backend, x, op, what):
    refused = pytest.raises(
        BreakError, match=f"{op.__name__} returned {what} .* output tensor that the caller"
    )
    with refused, BreakableCUDAGraphCapture(backend=backend) as captured:
        x.add_(op(x))
    with pytest.raises(CaptureError, match="nothing to replay"):
        captured.replay()
    assert op(x) is not None  # outside a capture it is an ordinary function
    capture(lambda: x + 1, backend=backend).replay()  # and the next capture is not disturbed


TRANSFERS = []


def transfers(fn):
    """A decorator with an effect on the host."""

    @functools.wraps(fn)
    def around(*args):
        TRANSFERS.append(fn.__name__)
        fn(*args)

    return around


def silent(fn):
    """One that leaves no trace of what it decorates."""
    return lambda *args: fn(*args)


@transfers
@eager_break_during_capture
def wrapped(values, output):
    output.copy_(values)


@silent
@eager_break_during_capture
def hidden(values, output):
    output.copy_(values)


@eager_break_during_capture
@transfers
def outermost(values, output):
    output.copy_(values)


@pytest.mark.parametrize(("op", "name"), [(wrapped, "wrapped"), (hidden, "hidden")])
def test_a_decorator_around_the_break_is_refused(backend, x, op, name):
    refused = pytest.raises(BreakError, match=f"{name} is decorated outside of eager_break_during_capture")
    with refused, BreakableCUDAGraphCapture(backend=backend):
        op(x, torch.empty_like(x))
    op(x, torch.empty_like(x))


def test_a_decorator_inside_the_break_runs_at_every_replay(backend, x):
    TRANSFERS.clear()
    with BreakableCUDAGraphCapture(backend=backend) as captured:
        outermost(x, torch.empty_like(x))
    captured.replay()
    assert TRANSFERS == ["outermost"] * 2


def refused_as_nested():
    return pytest.raises(CaptureError, match="inside a capture")


def test_captures_do_not_nest(backend, x):
    def nested():
        with BreakableCUDAGraphCapture(backend=backend):
            x.add_(1)

    for around in (nested, lambda: capture(lambda: x + 1, backend=backend)):
        with refused_as_nested(), BreakableCUDAGraphCapture(backend=backend):
            around()
    with refused_as_nested():
        capture(nested, backend=backend)
    nested()


@eager_break_during_capture
def captures_itself(values):
    with BreakableCUDAGraphCapture(backend="cuda" if values.is_cuda else "emulated"):
        pass


def test_nor_inside_a_broken_out_op(backend, x):
    with refused_as_nested(), BreakableCUDAGraphCapture(backend=backend):
        captures_itself(x)
    assert BreakableCUDAGraphCapture.current() is None


def test_each_thread_has_a_capture_of_its_own():
    others = []

    def other_thread():
        with BreakableCUDAGraphCapture(backend="emulated") as captured:
            model(torch.zeros(4))
        others.append(captured.num_graphs)

    with BreakableCUDAGraphCapture(backend="emulated") as captured:
        thread = threading.Thread(target=other_thread)
        thread.start()
        thread.join()
    assert (others, captured.num_graphs) == ([2], 1)


def test_an_exception_leaves_nothing_half_captured(backend, x):
    with pytest.raises(ZeroDivisionError), BreakableCUDAGraphCapture(backend=backend) as captured:
        model(x)
        x.add_(1 / 0)
    assert captured.segments == captured.graphs == []
    assert BreakableCUDAGraphCapture.current() is None
    assert x.tolist() == [0, 1, 2, 3]


# The wrapper: a capture for each shape.


def test_wrapper_captures_each_shape_once_and_replays_in_place(backend, x):
    calls = []

    def runnable(x):
        calls.append(len(x))
        return model(x)

    runnable(x)
    wrapper = BreakableCUDAGraphWrapper(runnable, backend=backend, pool=new_pool(backend))
    wrapper(x=x), wrapper(x=x[:2])
    with replayed() as graphs:
        assert wrapper(x=x).tolist() == [9, 19, 29, 39]
        assert wrapper(x=x[:2]).tolist() == [9, 19]
    assert calls == [4, 4, 2]
    assert len(graphs) == 4


def test_wrapper_refuses_inputs_that_have_moved(backend, x):
    model(x)
    wrapper = BreakableCUDAGraphWrapper(model, backend=backend, pool=new_pool(backend))
    wrapper(x=x)
    with pytest.raises(CaptureError, match="not where they were at capture"):
        wrapper(x=x.clone())
