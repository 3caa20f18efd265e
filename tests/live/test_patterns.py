"""Patterns of audited captures, in graphs of a GPU."""

from types import SimpleNamespace

import pytest
import torch

from mrv2lab.audit import Engine, EngineAudit
from mrv2lab.audit.launches import node_handles
from mrv2lab.graphs.base import idle_replays, observed, replayed
from mrv2lab.live import patterns

ON_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


class Serving:
    """A graph of torch's with two allocations, on two streams, and random numbers."""

    def __init__(self):
        self.x = torch.ones(8, device="cuda")
        side = torch.cuda.Stream()
        with patterns.holding_graphs():
            self.graph = torch.cuda.CUDAGraph()

            def step():
                made = torch.empty(8, device="cuda")
                side.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(side):
                    other = torch.empty(8, device="cuda", dtype=torch.bfloat16)
                    other[:2].copy_(self.x[:2])
                made[:4].copy_(self.x[:4])
                torch.cuda.current_stream().wait_stream(side)
                return made, other, torch.nn.functional.dropout(self.x)

            def capture():
                with torch.cuda.graph(self.graph):
                    self.out = step()

            engine = Engine("a step", capture, self.graph.replay, step, anchor=step, roots={"x": self.x})
            audit = EngineAudit(engine, backend="cuda")
            audit.capture()
        self.captures, self.session = audit.passes.captures, audit.passes.session

    def replayed(self) -> tuple[list[float], list[float]]:
        for tensor in self.out[:2]:
            tensor.fill_(5.0)
        self.graph.replay()
        torch.cuda.synchronize()
        return self.out[0].tolist(), self.out[1].tolist()

    def num_replayed(self) -> int:
        """How many nodes torch's graph has, in what it holds."""
        from cuda.bindings import driver

        (child,) = node_handles(torch.cuda.CUDAGraph.raw_cuda_graph(self.graph))
        return len(node_handles(int(driver.cuGraphChildGraphNodeGetGraph(child)[1])))


@ON_GPU
def test_a_graph_gives_its_patterns_only_inside():
    served = Serving()
    made, other = served.replayed()
    assert made[:4] == [1.0] * 4 and made[4:] != [5.0] * 4 and other[2:] != [5.0] * 6
    num = len(served.graph._observed.nodes)
    for _ in range(2):
        assert patterns.withhold(served.captures, served.session) == 2
        assert served.replayed() == ([1.0] * 4 + [5.0] * 4, [1.0] * 2 + [5.0] * 6)
        assert served.num_replayed() == num - 2
        with patterns.given(served.session):
            assert served.replayed() == served.replayed() == (made, other)
        assert served.num_replayed() == num - 2
        assert served.replayed() == ([1.0] * 4 + [5.0] * 4, [1.0] * 2 + [5.0] * 6)


@ON_GPU
def test_what_was_captured_stays_readable_and_random_numbers_go_on():
    served = Serving()
    before = node_handles(served.graph.raw_cuda_graph())
    patterns.withhold(served.captures, served.session)
    assert len(node_handles(served.graph.raw_cuda_graph())) == len(before)
    served.graph.replay()
    first = served.out[2].tolist()
    assert any(served.graph.replay() or served.out[2].tolist() != first for _ in range(20))


@ON_GPU
def test_one_whose_patterns_were_never_withheld_replays_as_it_was():
    served = Serving()
    with patterns.given(served.session):
        assert served.replayed()[0][4:] != [5.0] * 4
    assert not served.graph._captured


def test_only_a_replay_that_somebody_watches_is_noted(monkeypatch):
    """As in a server: nearly none is."""
    own = []

    class Graph:
        def __new__(cls, keep_graph=False):
            return super().__new__(cls)

        def __init__(self, keep_graph=False):
            pass

        def replay(self):
            own.append("own")

    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    with patterns.holding_graphs():
        graph = torch.cuda.CUDAGraph()
    graph._observed = SimpleNamespace(replay=lambda: own.append("noted"))
    graph.replay()
    for watched in (replayed(), idle_replays(), observed(None), patterns.given(None)):
        with watched:
            graph.replay()
    graph.replay()
    assert own == ["own", *["noted"] * 4, "own"]
