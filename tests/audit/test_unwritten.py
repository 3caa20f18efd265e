"""Memory that nobody wrote is read, and only some contents of it show: zeros, huge numbers, none at all."""

import sys

import pytest
import torch

from mrv2lab.audit import audit, passes
from mrv2lab.audit.memory import storage_of
from mrv2lab.audit.ops import Given
from mrv2lab.audit.recorder import Recorder, Session
from mrv2lab.graphs import host

programs = sys.modules["audit_programs"]


def found_by_zero(w, y):
    return w.x + (y == 0).float()


def found_by_a_huge_number(w, y):
    return w.x + torch.where(y.abs() > 1e30, 1.0, 0.0)


def found_by_a_larger_one(w, y):
    return torch.maximum(y, torch.full_like(y, 5000.0)) + w.x


def found_by_a_smaller_one(w, y):
    return torch.minimum(y, torch.full_like(y, -5000.0)) + w.x


def found_by_no_number(w, y):
    return w.x + y.isnan().float()


def found_in_part(w, y):
    y[:4] = w.x[:4]
    return w.x + (y == 0).float()


READERS = [
    found_by_zero, found_by_a_huge_number, found_by_a_larger_one, found_by_a_smaller_one, found_by_no_number,
    found_in_part,
]  # fmt: skip


@pytest.mark.parametrize("kept", [False, True], ids=["each time", "kept"])
@pytest.mark.parametrize("read", READERS, ids=lambda read: read.__name__)
def test_what_only_some_contents_show_is_found(read, kept, device, backend):
    w = programs.Worker(device)

    def step():
        if w.table is None or not kept:
            w.table = torch.empty(8, device=device)
        return read(w, w.table)

    report = audit(step, vary=w.new_inputs, backend=backend)
    assert [(f.kind, f.subject) for f in report.findings] == [("unwritten-read", "w.table")], str(report)


@pytest.mark.parametrize("read", READERS, ids=lambda read: read.__name__)
def test_in_a_step_that_is_not_captured_too(read, device, backend):
    w = programs.Worker(device)

    def step():
        y = torch.empty(8, device=device)
        return read(w, y)

    report = audit(step, captured=False, backend=backend)
    assert [(f.kind, f.subject) for f in report.findings] == [("unwritten-read", "y")], str(report)


def test_negative_integers_are_tried_where_they_can_do_no_harm():
    y = torch.ones(8)

    def step():
        m = torch.empty(8, dtype=torch.int32)
        return y * (m >= 0)

    report = audit(step, backend="emulated")
    assert [(f.kind, f.subject) for f in report.findings] == [("unwritten-read", "m")], str(report)


def test_of_several_the_one_that_shows_is_named(device, backend):
    w = programs.Worker(device)

    def step():
        one = torch.empty(8, device=device)
        other = torch.empty(8, device=device)
        _ = one + 1
        return w.x + (other == 0).float()

    report = audit(step, vary=w.new_inputs, backend=backend)
    assert [f.subject for f in report.findings] == ["other"], str(report)


@pytest.mark.parametrize("captured", [True, False], ids=["captured", "eager"])
def test_a_line_that_each_layer_runs_hides_none_behind_it(captured, device, backend, monkeypatch):
    w, runs = programs.Worker(device), []
    replay = passes.Passes.run
    monkeypatch.setattr(passes.Passes, "run", lambda *a, **k: runs.append(a) or replay(*a, **k))

    def step():
        h = w.x
        for _ in range(16):
            output = torch.empty(8, device=device)
            h = h + output
        last = torch.empty(8, device=device)
        return h, w.x + last

    report = audit(step, vary=w.new_inputs, captured=captured, backend=backend)
    assert [f.subject for f in report.findings] == ["output", "last"], str(report)
    assert len(runs) < 24  # not one search for each layer


def masked(w, y):
    y[:4] = w.x[:4]
    return torch.where(torch.arange(8, device=w.x.device) < 4, y, 0.0)


def masked_attention(w, y):
    """Scores of rows that nobody wrote are put out before the softmax, and their values are cleared."""
    y[:4] = w.x[:4]
    is_there = torch.arange(8, device=w.x.device) < 4
    weights = (w.x * y).masked_fill(~is_there, -torch.inf).softmax(-1)
    return weights @ y.masked_fill(~is_there, 0.0)


def cut(w, y):
    y[:4] = w.x[:4]
    return (y * 2)[:4]


@pytest.mark.parametrize("read", [masked, masked_attention, cut])
def test_what_is_read_and_does_not_matter_is_right(read, device, backend):
    w = programs.Worker(device)

    def step():
        y = torch.empty(8, device=device)
        return read(w, y)

    assert audit(step, vary=w.new_inputs, backend=backend).findings == ()
    assert audit(step, captured=False, backend=backend).findings == ()


def test_a_step_that_reads_no_such_memory_is_run_no_more_often(device, backend, monkeypatch):
    w, runs = programs.Worker(device), []
    eagerly = passes.Passes.eager
    monkeypatch.setattr(passes.Passes, "eager", lambda *a, **k: runs.append(a) or eagerly(*a, **k))

    def step():
        y = torch.empty(8, device=device)
        y.copy_(w.x)
        return y * 2

    assert audit(step, vary=w.new_inputs, backend=backend).findings == ()
    assert len(runs) == 2  # at later requests nobody watches


def test_memory_that_the_host_has_copied_to_the_device_is_lent_anew(device, backend):
    """Where the copy lies there may have been memory that nobody had written."""
    there = host(torch.tensor([2, 0]))
    with Recorder(Session(backend)) as recorder:
        unwritten = torch.empty(2, dtype=torch.int64, device=device)
        copied = there.to(device, copy=True)
        recorder.born.pop(storage_of(copied))  # made in this pass
        given = Given("index", unwritten, False, storage_of(unwritten))
        assert recorder.writers.source(given, False) is not None
        recorder._bear([storage_of(unwritten)])  # as of a copy that comes to lie there
        assert recorder.writers.source(given, False) is None
