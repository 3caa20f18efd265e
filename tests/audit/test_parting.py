"""Where a graph and an eager pass part, if nothing that is looked for explains it."""

import weakref
from types import SimpleNamespace

import pytest
import torch

from mrv2lab.audit import audit
from mrv2lab.audit.driver import audit_engine
from mrv2lab.audit.passes import Engine, Passes
from mrv2lab.graphs import capture

KEPT = []  # owners of memory to which no path leads from a step


class Owner:
    def __init__(self, value, device):
        self.state = torch.full((4,), value, device=device)
        KEPT.append(self)


@pytest.fixture(autouse=True)
def nobody_is_kept():
    yield
    KEPT.clear()


def layers(device, moves, num=2):
    """Layers that find their memory by weak references, one of which comes to lead to another owner."""
    x, out = torch.ones(4, device=device), torch.zeros(4, device=device)
    owners = [weakref.ref(Owner(float(i), device)) for i in range(num)]

    def last(h):
        h = h * owners[-1]().state  # LAST
        return h + 1

    def step():
        h = x * 2
        for owner in owners[:-1]:
            h = -h
            h = h + owner().state  # OTHERS
        out.copy_(last(h))
        return out.sum(0, keepdim=True)

    def vary():
        x.add_(1)
        if moves is not None:
            owners[moves] = weakref.ref(Owner(7.5, device))

    return step, vary


@pytest.mark.parametrize(("moves", "place"), [(0, "OTHERS"), (-1, "LAST"), (None, None)])
def test_the_line_is_named_whose_work_gives_another_thing_in_the_graph(moves, place, device, backend):
    step, vary = layers(device, moves)
    found = audit(step, vary=vary, backend=backend).findings
    assert {(f.kind, f.where.source.rpartition("# ")[2]) for f in found} == (
        {("diverged", place)} if place else set()
    )
    assert all("runs eagerly" in f.evidence and "0x" in f.evidence for f in found)


def test_a_long_step_is_halved(device, backend, monkeypatch):
    passes, eager = [], Passes.eager
    monkeypatch.setattr(Passes, "eager", lambda self, *a, **k: passes.append(1) or eager(self, *a, **k))
    step, vary = layers(device, moves=40, num=64)
    found = audit(step, vary=vary, backend=backend).findings
    assert {f.where.source.rpartition("# ")[2] for f in found} == {"OTHERS"}
    assert len(passes) < 20  # of 64 layers


def test_what_is_done_beside_a_graph_that_is_right_is_named(device, backend):
    x, graphs = torch.ones(4, device=device), []

    def step():
        return x * 2

    def run():
        graphs[0].replay()
        return graphs[0].outputs + 1  # BESIDE

    engine = Engine("odd", lambda: graphs.append(capture(step, backend=backend)), run, step)
    (found,) = audit_engine(engine, backend=backend).findings
    assert found.kind == "diverged" and found.where.source.endswith("# BESIDE")
    assert "aten.add is done beside it" in found.evidence


def test_where_no_part_explains_it_this_is_said(device, backend):
    x, graphs = torch.ones(4, device=device), []

    def double():
        x.mul_(2)

    def add():
        x.add_(1)

    def run():
        graphs[1].replay()
        graphs[0].replay()

    engine = Engine(
        "in another order",
        capture=lambda: graphs.extend(capture(part, backend=backend) for part in (double, add)),
        run=run,
        eager=lambda: (double(), add()),
    )
    (found,) = audit_engine(engine, backend=backend).findings
    assert found.kind == "diverged" and "no single part of the step" in found.evidence


def test_what_only_an_eager_engine_gives_is_named_by_the_line_that_makes_it(device, backend):
    def make():
        x, out, held = torch.ones(3, device=device), torch.zeros(3, device=device), SimpleNamespace(number=0)
        graph = capture(lambda: out.copy_(x * 2), backend=backend)

        def step():
            graph.replay()
            _ = out  # and so the step knows its name; an assertion would lead to all that pytest knows

        def eager():
            out.copy_(x * (3 if held.number > 2 else 2))  # EAGER

        def vary():
            held.number += 1
            x.fill_(held.number)

        return SimpleNamespace(step=step, eager=eager, vary=vary, held=held)

    one = make()
    (found,) = audit(one.step, vary=one.vary, backend=backend, twin=make).findings
    assert (found.kind, found.subject) == ("diverged", "out") and found.where.source.endswith("# EAGER")
