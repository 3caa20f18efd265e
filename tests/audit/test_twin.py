"""What leaks into both passes of an audit, and shows beside a fresh engine."""

from types import SimpleNamespace

import pytest
import torch

from mrv2lab.audit import audit


def engine(device, kind):
    """Two static inputs, of which the runner may forget to refresh one behind the capture."""
    x, scale = torch.ones(3, device=device), torch.ones(3, device=device)
    held = SimpleNamespace(results=[], number=0)
    table = {"plan": None}

    def step():
        if kind == "planned" and table["plan"] is None:
            table["plan"] = held.number + 1
        factor = table["plan"] or 1
        held.out = x * scale * factor
        return held.out

    def eager():
        return x * (held.number + 1.0) if kind == "stale" else step()

    def vary():
        held.number += 1
        x.fill_(held.number)
        if kind != "stale":
            scale.fill_(held.number + 1)
        if kind == "planned_anew":
            table["plan"] = None
        if kind == "kept":
            held.results.append(getattr(held, "out", x))

    made = {"step": step, "vary": vary, "eager": eager, "reset": None}
    if kind == "kept":
        made["finish"] = lambda: torch.stack(held.results[1:])
    return SimpleNamespace(**made)


@pytest.mark.parametrize(("kind", "found"), [("stale", "diverged"), ("kept", "diverged"), ("right", None)])
def test_what_both_passes_share_shows_beside_a_fresh_engine(kind, found, device, backend):
    def asked(**twin):
        one = engine(device, kind)
        return audit(one.step, vary=one.vary, backend=backend, **twin)

    assert not asked().findings
    assert asked(twin=lambda: engine(device, kind)).kinds == ({found} if found else set())


def test_a_replay_that_raises_where_eager_steps_do_not_is_a_finding(device, backend):
    if backend == "cuda":
        pytest.skip("an index out of range ends the process there")

    def make():
        table, position = torch.ones(8, device=device), torch.zeros(1, dtype=torch.int64, device=device)

        def step():
            y = table[position]
            position.add_(3)
            return y

        def eager():
            position.zero_()
            return table[position]

        return SimpleNamespace(step=step, vary=lambda: None, eager=eager)

    one = make()
    (first,) = audit(one.step, vary=one.vary, twin=make, backend=backend).findings
    assert first.kind == "diverged" and "raised IndexError" in first.evidence
