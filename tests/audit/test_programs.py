"""Each program with something wrong: kind, subject and line of the first finding. Each right one: nothing."""

import sys

import pytest

from mrv2lab.audit import audit

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


@pytest.mark.parametrize("make", programs.RIGHT, ids=lambda make: make.__name__)
def test_what_is_right_is_left_alone(make, device, backend):
    report = audited(make, device, backend)
    assert report.findings == (), str(report)
