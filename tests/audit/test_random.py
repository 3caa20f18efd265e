"""Audits of random programs: nothing is found in a right one, and the one fault that is put in comes first.

More of them: `tests.random_programs`.
"""

from collections import Counter
from types import SimpleNamespace

import pytest
import torch

from mrv2lab.audit import audit
from mrv2lab.errors import AuditError
from tests.graphs.test_fuzz import DEVICE, buffers, run

FAULTS = {"frozen-host-value": "engine.n", "moved-address": "engine.w"}


def outcome(seed, fault, backend="emulated"):
    """The first finding in the program of a seed with this fault: `none`, `refused`, or its kind and subject.

    Without a fault the program does the same work over buffers that stay where they are.
    """
    static, w = buffers(seed, 0, backend), torch.ones(3, device=DEVICE[backend])
    engine, num_steps = SimpleNamespace(static=static, n=2, w=w), 0

    def step():
        made, _ = run(seed, engine.static)
        return [*made, engine.w * (engine.n if fault == "frozen-host-value" else 2)]

    def vary():
        nonlocal num_steps
        num_steps += 1
        for old, new in zip(engine.static, buffers(seed, num_steps, backend), strict=True):
            old.copy_(new)
        engine.n += 1
        engine.w = engine.w + 1 if fault == "moved-address" else engine.w.add_(1)

    try:
        report = audit(step, vary=vary, backend=backend)
    except AuditError:
        return "refused"
    if not report.findings:
        return "none"
    first = report.findings[0]
    return "refused" if first.kind == "host-sync" else (first.kind, first.subject)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("fault", [None, *FAULTS])
def test_a_random_program_is_accused_of_its_one_fault_and_of_no_other(fault):
    outcomes = Counter(outcome(seed, fault) for seed in range(20))
    assert outcomes.pop("refused", 0) < 5
    assert set(outcomes) == {(fault, FAULTS[fault]) if fault else "none"}, outcomes
