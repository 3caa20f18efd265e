"""Graphs that a program makes by itself, with torch's own names: on a GPU, and by the emulator."""

import gc
import weakref
from types import SimpleNamespace

import pytest
import torch

from mrv2lab import testing
from mrv2lab.audit import audit
from mrv2lab.audit.target import audit_target
from mrv2lab.errors import AuditError, CaptureError
from mrv2lab.graphs import is_capturing, replayed
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


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU says it itself")
def test_a_capture_is_begun_once_and_ended_once(device):
    x, graph = torch.ones(4, device=device), torch.cuda.CUDAGraph()
    with pytest.raises(RuntimeError, match="without a capture"):
        graph.capture_end()
    graph.capture_begin()
    with pytest.raises(CaptureError):
        torch.cuda.CUDAGraph().capture_begin()
    x.add_(1)
    graph.capture_end()
    assert torch._C._len_torch_dispatch_stack() == 0 and not is_capturing()
    with pytest.raises(RuntimeError, match="already owns a captured graph"):
        graph.capture_begin()
    pool = weakref.ref(graph.pool())
    graph.reset()
    gc.collect()
    assert pool() is None
    with pytest.raises(RuntimeError, match="is no pool"):
        graph.capture_begin(pool=(0, 1))
    assert torch.cuda.current_device() == 0 and torch.cuda.set_device(0) is None


def test_graphs_of_one_pool_lend_each_other_memory(device, backend):
    """So it is with CUDA's: what nobody holds is lent to the next capture of the pool."""
    x, first, second = torch.ones(1 << 20, device=device), torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(first):
        y = x + 1
        at = y.data_ptr()
        z = y * 2
        del y
    with torch.cuda.graph(second, pool=first.pool()):
        held = x + 3
    first.replay()
    second.replay()
    torch.cuda.synchronize()
    assert held.data_ptr() == at and z[0].item() == 4.0 and held[0].item() == 4.0


def test_the_chosen_stream_is_current_inside_alone(device):
    before, stream, graph = torch.cuda.current_stream(), torch.cuda.Stream(), torch.cuda.CUDAGraph()
    x = torch.ones(4, device=device)
    with torch.cuda.graph(graph, stream=stream):
        assert torch.cuda.current_stream() == stream
        x.add_(1)
    assert torch.cuda.current_stream() == before


@pytest.mark.skipif(torch.cuda.is_available(), reason="there the driver ends it")
def test_a_capture_that_a_step_leaves_open_hinders_no_audit_after_it(device, backend):
    x = torch.ones(4, device=device)

    def step():
        torch.cuda.CUDAGraph().capture_begin()
        raise ValueError("oom")

    with pytest.raises(AuditError, match=r"ValueError .* oom"):
        audit(step, vary=lambda: x.add_(1), backend=backend)
    assert audit(lambda: x * 2, vary=lambda: x.add_(1), backend=backend).findings == ()


BY_FILE = """
import torch
x, state = torch.ones(4), {"scale": 2.0}
graphs = []

def body():
    return x * state["scale"]

def captured():
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = body()
    graphs.append((graph, result))

def step():
    graphs or captured()
    graphs[0][0].replay()
    return graphs[0][1].clone()

def eager():
    return body().clone()

def vary():
    x.add_(1)
    state["scale"] += is_wrong
"""


@pytest.mark.skipif(torch.cuda.is_available(), reason="its tensors lie on the CPU")
@pytest.mark.parametrize("is_early", [False, True])
@pytest.mark.parametrize("is_wrong", [False, True])
def test_of_a_file_that_captures_itself_the_cause_is_named(is_wrong, is_early, backend, tmp_path):
    """When it is run, or at its first step; it is run anew for each fresh engine."""
    file = tmp_path / "engine.py"
    file.write_text(f"is_wrong = {int(is_wrong)}\n{BY_FILE}\n" + "captured()\n" * is_early)
    report = audit_target(f"{file}:step", runs_anew=True, backend=backend)
    told = [(f.kind, f.subject) for f in report.findings]
    assert told == [("frozen-host-value", "state['scale']")] * is_wrong and not report.is_blind


@pytest.mark.skipif(torch.cuda.is_available(), reason="its tensors lie on the CPU")
@pytest.mark.parametrize("anew", [False, True])
def test_graphs_that_are_held_against_nothing_are_no_success(anew, backend, tmp_path):
    file = tmp_path / "engine.py"
    file.write_text("is_wrong = 1\n" + BY_FILE.replace("def eager", "def other"))
    report = audit_target(f"{file}:step", runs_anew=anew, backend=backend)
    assert report.findings == () and report.is_blind and "eager" in str(report)


def test_nodes_and_replays_of_such_graphs_are_asserted(device, backend):
    x, graph = torch.ones(4, device=device), torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(graph):
        x.add_(1)
    if backend == "emulated":
        testing.assert_nodes(graph, contains="aten.add_")
    graph.instantiate()
    with pytest.raises(AssertionError, match="1 graphs were replayed, not 2"), testing.assert_replays(2):
        graph.replay()


NATURAL = """
from __future__ import annotations
import pickle
import sys
from dataclasses import dataclass
import torch

here = sys.modules[__name__]

@dataclass
class Batch:
    x: torch.Tensor
    scale: float = 2.0

@dataclass
class Meta:
    size: int

meta = pickle.loads(pickle.dumps(Meta(4)))
batch = Batch(torch.ones(meta.size))

def step():
    return batch.x * batch.scale

def vary():
    batch.x.add_(1)
    batch.scale += 1
"""


@pytest.mark.skipif(torch.cuda.is_available(), reason="its tensors lie on the CPU")
@pytest.mark.parametrize("anew", [False, True])
def test_a_file_finds_itself_among_the_modules(anew, backend, tmp_path):
    file = tmp_path / "natural_engine.py"
    file.write_text(NATURAL)
    report = audit_target(f"{file}:step", runs_anew=anew, backend=backend)
    assert [f.subject for f in report.findings] == ["batch.scale"]
