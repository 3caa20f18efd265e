"""What an audit takes grows as the step does, also where that is wrong: in calls, not by a clock."""

import cProfile
from types import SimpleNamespace as Named

import pytest
import torch

from mrv2lab.audit import audit
from mrv2lab.audit.ops import Ops
from mrv2lab.bench import Chain

X = 16


def branch(n):
    """A branch in a loop that goes the other way now: work that was lost, thousands of times."""
    engine, x = Named(on=False), torch.ones(X)

    def step():
        y = x
        for _ in range(n):
            if engine.on:
                y = y * 2.0
            y = y + 1.0
        return y

    return step, lambda: setattr(engine, "on", True)


def calls(n):
    """Another function is called from a loop."""
    engine, x = Named(on=True), torch.ones(X)

    def double(y):
        return y * 2.0

    def add(y):
        return y + 1.0

    def step():
        made = double if engine.on else add
        y = x
        for _ in range(n):
            y = made(y)
        return y

    return step, lambda: setattr(engine, "on", False)


def number(n):
    """A number that was frozen in each turn of a loop."""
    engine, x = Named(scale=1.0), torch.ones(X)

    def step():
        y = x
        for _ in range(n):
            y = y + engine.scale
        return y

    return step, lambda: setattr(engine, "scale", 2.0)


def shape(n):
    """What one number shapes is passed on from op to op."""
    engine, x = Named(n=4), torch.ones(X)

    def step():
        y = x[: engine.n]
        for _ in range(n):
            y = y + 1.0
        return y

    return step, lambda: setattr(engine, "n", 8)


def weights(n):
    """All weights are bound anew."""
    engine, x = Named(held=[torch.ones(X) for _ in range(n)]), torch.ones(X)

    def step():
        y = x
        for weight in engine.held:
            y = y + weight
        return y

    return step, lambda: setattr(engine, "held", [torch.full((X,), 3.0) for _ in range(n)])


def buffers(n):
    """Many buffers are written beside what is returned."""
    engine, x = Named(scale=1.0, held=[torch.zeros(X) for _ in range(n)]), torch.ones(X)

    def step():
        for buffer in engine.held:
            buffer.copy_(x * engine.scale)
        return x * engine.scale

    return step, lambda: setattr(engine, "scale", 3.0)


def num_calls(step, vary):
    """How many functions an audit calls, and whether it found something."""
    profile = cProfile.Profile()
    profile.enable()
    try:
        report = audit(step, vary=vary, backend="emulated")
    finally:
        profile.disable()
    return sum(entry.callcount for entry in profile.getstats()), report


@pytest.mark.parametrize("wrong", [branch, calls, number, shape, weights, buffers])
def test_of_four_times_as_many_ops_an_audit_takes_four_times_as_much(wrong):
    audit(*wrong(4)[:1], backend="emulated")  # what is imported, compiled or looked up once
    (few, _), (many, report) = (num_calls(*wrong(n)) for n in (150, 600))
    assert report.findings, report
    assert many < 5 * few


def test_what_an_executor_does_to_capture_an_op_is_not_looked_at(device, backend, monkeypatch):
    """It is as much again for each op: several of torch's on the emulator."""
    seen, look = [], Ops.__torch_dispatch__
    chain = Chain(50, device)
    monkeypatch.setattr(
        Ops, "__torch_dispatch__", lambda self, *given: seen.append(self) or look(self, *given)
    )
    assert not audit(chain.step, vary=chain.vary, backend=backend).findings
    assert len(seen) < 4 * chain.num_nodes  # as it warms up, is captured, and runs eagerly
