"""Graphs that a program makes by itself, with torch's own names: on a GPU, and by the emulator."""

from types import SimpleNamespace

import pytest
import torch

from mrv2lab.audit import audit
from mrv2lab.errors import CaptureError
from mrv2lab.graphs import replayed
from mrv2lab.graphs.owned import observable


@pytest.fixture(autouse=True)
def as_there_is(backend):
    if backend == "emulated" and torch.cuda.is_available():
        pytest.skip("torch's names mean the GPU here")
    with observable():
        yield


def test_a_graph_of_torchs_keeps_what_the_host_held(device):
    x, scale, graph = torch.ones(4, device=device), 2.0, torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        y = x * scale
    x.fill_(3)
    with replayed() as seen:
        graph.replay()
    torch.cuda.synchronize()
    assert y.tolist() == [6.0] * 4 and len(seen) == 1


def test_work_on_the_stream_that_is_named_is_captured(device):
    x, graph, stream = torch.ones(4, device=device), torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.graph(graph, pool=torch.cuda.graph_pool_handle(), stream=stream):
        assert torch.cuda.is_current_stream_capturing()
        with torch.cuda.stream(stream):
            y = x + 1
    assert not torch.cuda.is_current_stream_capturing()
    second = torch.cuda.CUDAGraph()
    with torch.cuda.graph(second, pool=graph.pool()):
        z = x + 2
    for one in (graph, second):
        one.replay()
    torch.cuda.synchronize()
    assert (y[0].item(), z[0].item()) == (2.0, 3.0)


def test_nothing_is_left_of_a_capture_that_raises(device):
    x, graph = torch.ones(4, device=device), torch.cuda.CUDAGraph()
    with pytest.raises(ZeroDivisionError), torch.cuda.graph(graph):
        x.add_(1 // 0)
    assert not torch.cuda.is_current_stream_capturing()
    if not torch.cuda.is_available():
        with pytest.raises(RuntimeError, match="without a preceding successful capture"):
            graph.replay()


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU says it itself")
def test_a_capture_does_not_wait_and_is_let_go_of(device):
    x, graph = torch.ones(4, device=device), torch.cuda.CUDAGraph()
    with pytest.raises(CaptureError, match="waits for the device"), torch.cuda.graph(graph):
        torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        x.add_(1)
    graph.replay()
    graph.reset()
    with pytest.raises(RuntimeError):
        graph.replay()
    assert x.tolist() == [2.0] * 4


def test_graphed_callables_of_torchs_run_forward_and_backward(device, backend):
    linear = torch.nn.Linear(4, 4, device=device)
    sample = torch.ones(2, 4, device=device, requires_grad=True)
    called = torch.cuda.make_graphed_callables(linear, (sample,))
    with torch.no_grad():
        linear.weight.fill_(1)
        linear.bias.zero_()
    with replayed() as seen:
        y = called(torch.full((2, 4), 2.0, device=device))
        y.sum().backward()
    assert y[0, 0].item() == 8.0 and linear.weight.grad[0, 0].item() == 4.0
    assert len(seen) == (1 if backend == "cuda" else 2)  # there a thread of autograd's replays the second


class Runner:
    """One graph for each number of rows; what is asked beside that is not in the key."""

    def __init__(self, device, has_flag):
        self.x, self.num_rows, self.is_guided = torch.ones(4, 2, device=device), 2, False
        self.graphs, self.has_flag = {}, has_flag

    def forward(self):
        y = self.x[: self.num_rows] * 2
        return y + 1 if self.is_guided else y

    def step(self):
        key = (self.num_rows, self.is_guided) if self.has_flag else self.num_rows
        if key not in self.graphs:
            self.forward()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                result = self.forward()
            self.graphs[key] = graph, result
        graph, result = self.graphs[key]
        graph.replay()
        return result.clone()

    def vary(self):
        self.x.add_(1)
        self.num_rows = 3 - self.num_rows
        self.is_guided = self.x[0, 0].item() > 2


@pytest.mark.parametrize("has_flag", [False, True])
def test_an_engine_with_graphs_of_torchs_is_held_against_its_eager_twin(has_flag, device, backend):
    def fresh():
        runner = Runner(device, has_flag)
        return SimpleNamespace(step=runner.step, vary=runner.vary, eager=runner.forward)

    made = fresh()
    report = audit(made.step, vary=made.vary, twin=fresh, backend=backend)
    assert report.own_graphs
    assert [(f.kind, f.subject) for f in report.findings[:1]] == (
        [] if has_flag else [("frozen-host-value", "self.is_guided")]
    ), str(report)
