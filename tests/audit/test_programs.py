"""Each program with something wrong: kind, subject and line of the first finding. Each right one: nothing."""

import functools
import sys
import threading
from pathlib import Path

import pytest
import torch

from mrv2lab.audit import audit, audit_target
from mrv2lab.graphs import host

programs = sys.modules["audit_programs"]


def audited(make, device, backend):
    program = make(device)
    return audit(program.step, vary=program.vary, reset=program.reset, backend=backend)


@pytest.mark.parametrize("make", programs.WRONG, ids=lambda make: make.__name__)
def test_what_is_wrong_is_found_first_and_named(make, device, backend):
    report = audited(make, device, backend)
    kind, subject = programs.WRONG[make]
    assert report.findings, "nothing found"
    first = report.findings[0]
    assert (first.kind, first.subject) == (kind, subject), str(report)
    assert first.where is not None and first.where.file == programs.__file__
    assert first.where.source


def test_making_a_constant_is_no_kernel(device, backend):
    found = audited(programs.appended_to_warm_up, device, backend).findings
    assert [f.subject for f in found if f.kind == "lost-kernel"] in ([], ["aten._to_copy"])


@pytest.mark.parametrize("make", programs.RIGHT, ids=lambda make: make.__name__)
def test_what_is_right_is_left_alone(make, device, backend):
    report = audited(make, device, backend)
    assert report.findings == (), str(report)


def test_a_grid_that_follows_the_frozen_value_is_a_finding_too(device, backend):
    assert "frozen-grid" in audited(programs.grid_by_length, device, backend).kinds


@pytest.mark.parametrize("make", [programs.unwritten_index, programs.index_computed_from_unwritten_memory])
def test_memory_is_never_addressed_by_what_nobody_wrote(make, device, backend):
    (found,) = audited(make, device, backend).findings
    assert "takes addresses or loop bounds from it" in found.evidence


def test_a_branch_that_went_the_same_way_is_not_the_reason(device, backend):
    w, flag = programs.Worker(device), threading.Event()

    def negated(y):
        return y.neg() if flag.is_set() else y

    def step():
        y = w.x * 2
        if w.n:  # another number now, and as true as before
            y = negated(y)
        return y

    report = audit(step, vary=lambda: (flag.set(), setattr(w, "n", 5)), backend=backend)
    assert [(f.kind, f.subject) for f in report.findings] == [("lost-kernel", "aten.neg")]


def test_findings_come_in_the_order_of_the_step(device, backend):
    w = programs.Worker(device)

    def step():
        y = w.x + 1
        return y * w.n

    findings = audit(step, vary=programs.varied(w, x=w.x * 2, n=5), backend=backend).findings
    assert [f.subject for f in findings] == ["w.x", "w.n"]


@pytest.mark.parametrize("make", [programs.kernel_scalar, programs.number_in_a_tensor])
def test_neither_the_copies_of_an_audit_nor_a_constant_made_anew_are_findings(make, device, backend):
    assert audited(make, device, backend).kinds == {"frozen-host-value"}


def test_no_view_no_constant_that_is_kept_and_nothing_of_the_hosts_is_lost_work(device, backend):
    x, flag, count = torch.ones(4, device=device), threading.Event(), host(torch.zeros(1))

    @functools.cache
    def table():
        return torch.arange(4.0, device=device)

    def step():
        y = x * table()
        if flag.is_set():
            count.add_(1)
            y[1:].neg_()
        return y

    findings = audit(step, vary=flag.set, reset=table.cache_clear, backend=backend).findings
    assert [(f.kind, f.subject) for f in findings] == [
        ("frozen-host-value", "flag.is_set()"),  # the branch itself, where no line says what it asked
        ("lost-kernel", "aten.neg_"),
    ]
    assert findings[0].change == (False, True)


def test_memory_that_only_the_eager_pass_allocates_is_looked_at_too(device, backend):
    x, flag = torch.ones(4, device=device), []

    def step():
        y = x * 2
        if flag:
            z = torch.empty(4, device=device)
            z[:2] = y[:2]
            y = y + z
        return y

    report = audit(step, vary=lambda: flag.append(1), backend=backend)
    assert report.findings[0].subject == "flag"
    assert [f.subject for f in report.findings if f.kind == "unwritten-read"] == ["z"]


@pytest.mark.gpu
def test_a_launch_on_another_stream_is_lost_and_a_joined_one_is_not():
    file = Path(__file__).with_name("other_stream.py")
    report = audit_target(f"{file}:beside", backend="cuda")
    assert "lost-kernel" in report.kinds, str(report)
    assert any("another stream" in finding.evidence for finding in report.findings), str(report)
    assert audit_target(f"{file}:joined", backend="cuda").findings == ()
