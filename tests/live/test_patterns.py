"""Patterns of audited captures, in graphs of a GPU."""

import pytest
import torch

from mrv2lab.audit import Engine, EngineAudit
from mrv2lab.graphs.foreign import observable_graphs
from mrv2lab.live import patterns

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def test_a_graph_gives_its_pattern_only_where_that_is_on():
    x = torch.ones(8, device="cuda")
    with observable_graphs():
        graph = torch.cuda.CUDAGraph()

        def step():
            made = torch.empty(8, device="cuda")
            made[:4].copy_(x[:4])
            return made

        def capture():
            with torch.cuda.graph(graph):
                capture.out = step()

        engine = Engine("a step", capture, graph.replay, step, anchor=step, roots={"x": x})
        audit = EngineAudit(engine, backend="cuda")
        audit.capture()
    captures, session = audit.passes.captures, audit.passes.session
    held = []
    for is_on in (True, False, True, False):
        assert patterns.switch(captures, session, is_on) == 1
        capture.out.fill_(5.0)
        graph.replay()
        torch.cuda.synchronize()
        held.append(capture.out.tolist())
    assert held[0][:4] == held[1][:4] == [1.0] * 4
    assert held[0][4:] != [5.0] * 4 and held[0] == held[2]
    assert held[1][4:] == held[3][4:] == [5.0] * 4
