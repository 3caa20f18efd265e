"""Frozen numbers that change nothing by themselves stand behind those that do."""

from types import SimpleNamespace

import pytest
import torch

from mrv2lab.audit import Engine, EngineAudit, audit
from mrv2lab.graphs import capture


def found(step, vary, device, **more):
    report = audit(step, vary=vary, backend="emulated" if device.type == "cpu" else "cuda", **more)
    return [(one.kind, one.subject, one.evidence) for one in report.findings]


def test_a_bound_that_nothing_reaches_comes_behind_the_factor(device):
    """As `max_seqlen_k` of attention, that every step of an engine passes."""
    x, state = torch.ones(4, device=device), SimpleNamespace(most=99.0, factor=2.0)

    def step():
        bounded = x.clamp(max=state.most)
        return bounded * state.factor

    def vary():
        state.most, state.factor = 88.0, 3.0

    (first, second) = found(step, vary, device)
    assert first[:2] == ("frozen-host-value", "state.factor")
    assert second[:2] == ("frozen-host-value", "state.most") and "by itself it changes nothing" in second[2]


def test_numbers_of_many_layers_are_held_together(device):
    """Of one layer alone the bound would change nothing: the next one bounds again."""
    x, state = torch.full((4,), 9.0, device=device), SimpleNamespace(most=5.0, least=0.0)

    def step():
        y = x + 0
        for _ in range(2):
            y = y.clamp(max=state.most)
        return y.clamp(min=state.least)

    def vary():
        state.most, state.least = 2.0, -1.0

    first, second = found(step, vary, device)
    assert first[1] == "state.most" and "by itself" not in first[2]
    assert second[1] == "state.least" and "by itself it changes nothing" in second[2]


def test_two_that_only_together_change_something_stay_in_order(device):
    x, state = torch.full((4,), 9.0, device=device), SimpleNamespace(one=5.0, two=5.0)

    def step():
        return torch.maximum(x.clamp(max=state.one), x.clamp(max=state.two))

    def vary():
        state.one, state.two = 20.0, 30.0

    first, second = found(step, vary, device)
    assert (first[1], second[1]) == ("state.one", "state.two")
    assert "by itself" not in first[2] + second[2]


def test_a_number_that_makes_another_shape_is_not_tried(device):
    x, state = torch.arange(6.0, device=device), SimpleNamespace(end=2, factor=2.0)

    def step():
        return (x[: state.end] * state.factor).sum()

    def vary():
        state.end, state.factor = 3, 3.0

    assert found(step, vary, device)[0][1] == "state.end"


@pytest.mark.parametrize("factor", [2.0, 3.0])
def test_of_memory_that_is_returned_in_part_the_rest_is_padding(factor, device, backend):
    """A graph of four rows, of which two are real: what it leaves in the others depends on what was there."""
    buffer, state = torch.zeros(4, device=device), SimpleNamespace(factor=2.0, pad=1.0)
    x, made = torch.ones(4, device=device), []

    def step():
        buffer.copy_(x * state.factor)
        buffer[2:].add_(state.pad)

    def run():
        made[0].replay()
        return buffer[:2]

    def eager():
        step()
        return buffer[:2]

    def prepare():
        made.append(capture(step, backend=backend))

    engine = Engine("rows", prepare, run, eager, anchor=step, roots={"state": state, "buffer": buffer})
    one = EngineAudit(engine, backend=backend)
    one.capture()
    state.factor, state.pad = factor, 5.0
    report = one.step(engine)
    assert [f.subject for f in report.findings] == ["state.factor", "state.pad"][: 2 * (factor != 2.0)]
