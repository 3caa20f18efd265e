"""State of the process, which fresh engines share: the first one has filled it for all that come."""

from functools import lru_cache, partial
from types import SimpleNamespace

import pytest
import torch

from mrv2lab.audit import audit

PLANS = {}
PLAN = None


class Planner:
    made = None
    last = 0.0

    def plan(self, scale):
        type(self).last = self.last or scale
        return self.last


@lru_cache
def factor_of(name):
    return 3.0


@pytest.fixture(autouse=True)
def unused():
    global PLAN
    yield
    PLAN, Planner.made, Planner.last = None, None, 0.0
    PLANS.clear()
    factor_of.cache_clear()


def engine(device, kind):
    x, held, table = torch.ones(4, device=device), SimpleNamespace(scale=2.0, plan=None), {"one": 2.0}

    planner = Planner()

    def planned():
        return torch.full((4,), held.scale, device=device)

    def step():
        global PLAN
        if kind == "dictionary":
            return x * PLANS.setdefault("plan", held.scale)
        if kind == "global":
            PLAN = planned() if PLAN is None else PLAN
            return x * PLAN
        if kind == "class":
            Planner.made = planned() if Planner.made is None else Planner.made
            return x * Planner.made
        if kind == "number of a class":
            return x * planner.plan(held.scale)
        if kind == "cache":
            return x * factor_of("plan")
        return x * table["one"]

    def vary():
        x.add_(1)
        held.scale += 1

    return SimpleNamespace(step=step, vary=vary, eager=lambda: step(), held=held)


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        ("dictionary", "PLANS['plan']"),
        ("global", "PLAN"),
        ("class", "Planner.made"),
        ("number of a class", "planner.last"),
        ("cache", "factor_of.cache_info()"),
        ("own", None),
    ],
)
def test_what_fresh_engines_find_filled_is_a_note(kind, path, device, backend):
    one = engine(device, kind)
    report = audit(one.step, vary=one.vary, twin=partial(engine, device, kind), backend=backend)
    told = [note for note in report.notes if note.startswith("fresh engines share")]
    assert not report.findings
    assert [path in note for note in told] == ([True] if path else []), str(report)


def test_no_entry_of_a_large_container_is_cut(device, backend):
    x, table = torch.ones(4, device=device), {i: torch.ones(1, device=device) for i in range(1500)}
    table["last"] = torch.ones(4, device=device)

    def vary():
        table["last"] = torch.full((4,), 3.0, device=device)

    (found,) = audit(lambda: x * table["last"], vary=vary, backend=backend).findings
    assert (found.kind, found.subject) == ("moved-address", "table['last']")


def test_what_is_left_out_of_too_many_objects_is_a_note(device, backend):
    x, table = torch.ones(4, device=device), {"many": [[] for _ in range(50_000)], "last": [1]}
    report = audit(lambda: x * len(table), vary=lambda: x.add_(1), backend=backend)
    (told,) = (note for note in report.notes if "too many objects" in note)
    assert "table['many'][" in told


def test_an_address_far_behind_in_a_large_table_is_followed(device, backend):
    x, held = torch.ones(4, device=device), SimpleNamespace(weight=torch.ones(4, device=device))
    table = torch.zeros(5000, dtype=torch.int64, device=device)
    table[-1] = held.weight.data_ptr()

    def step():
        return x + (table[-1] > 0) * held.weight * 0

    def vary():
        x.add_(1)
        held.weight = torch.ones(4, device=device)

    findings = audit(step, vary=vary, backend=backend).findings
    assert any("of it, which the graph reads" in f.evidence for f in findings)
