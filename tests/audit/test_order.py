"""What is ordered and what is not: streams, events, waits of the host, and memory that copies share."""

import gc
from types import SimpleNamespace

import pytest
import torch

from mrv2lab.audit import audit
from mrv2lab.audit.ops import Given
from mrv2lab.audit.order import HOST, Order
from mrv2lab.graphs import capture, host

MAIN, SIDE, THIRD = 1, 2, 3


def given(tensor, written):
    return Given("x", tensor, written, tensor.untyped_storage().data_ptr())


def raced(*steps):
    """Races of an order after some steps: (stream, tensor, written), or a function of the order."""
    order = Order()
    for step in steps:
        if callable(step):
            step(order)
        else:
            stream, tensor, written = step
            order.work(stream, "op", 0, [given(tensor, written)])
    return [(race.first.stream, race.second.stream) for race in order.races]


X = torch.zeros(4, 4)


class Mark:
    """An event: any object that can be kept weakly."""


def test_two_that_touch_the_same_race_if_one_of_them_writes():
    assert raced((MAIN, X, True), (SIDE, X, False)) == [(MAIN, SIDE)]
    assert raced((MAIN, X, False), (SIDE, X, True)) == [(MAIN, SIDE)]
    assert raced((MAIN, X, False), (SIDE, X, False)) == []
    assert raced((MAIN, X, True), (MAIN, X, True)) == []
    assert raced((MAIN, X[:, 0], True), (SIDE, X[:, 1], True)) == []
    assert raced((MAIN, X[1:], True), (SIDE, X[:2, 3], True)) == [(MAIN, SIDE)]
    assert raced((MAIN, X[:0], True), (SIDE, X, True)) == []


def test_what_comes_behind_a_wait_is_ordered_and_nothing_else_is():
    mark = Mark()

    def tie(order):
        order.record(mark, MAIN, True)
        order.wait(mark, SIDE)

    assert raced((MAIN, X, True), tie, (SIDE, X, True)) == []
    assert raced(tie, (MAIN, X, True), (SIDE, X, True)) == [(MAIN, SIDE)]
    assert raced((MAIN, X, True), tie, (SIDE, X, False), (THIRD, X, False)) == [(MAIN, THIRD)]
    assert raced((MAIN, X, True), lambda order: order.wait(mark, SIDE), (SIDE, X, True)) == [(MAIN, SIDE)]


def test_what_the_host_has_waited_for_is_done_before_whatever_it_issues_next():
    mark = Mark()
    assert raced((MAIN, X, True), Order.synchronize, (SIDE, X, True)) == []
    assert raced((MAIN, X, True), lambda order: order.synchronize(MAIN), (SIDE, X, True)) == []
    assert raced((MAIN, X, True), (SIDE, X[:0], False), lambda o: o.synchronize(SIDE), (SIDE, X, True)) == [
        (MAIN, SIDE)
    ]

    def waited(order):
        order.synchronize(MAIN)
        order.record(mark, SIDE, True)  # what is recorded here comes behind what the host knows to be done
        order.wait(mark, THIRD)

    assert raced((MAIN, X, True), waited, (THIRD, X, True)) == []
    assert raced((HOST, X, True), (MAIN, X, False)) == []
    assert raced((MAIN, X, False), (HOST, X, True)) == [(MAIN, HOST)]


def test_memory_that_is_lent_anew_is_other_memory():
    storage = X.untyped_storage().data_ptr()
    assert raced((MAIN, X, True), lambda order: order.forget(storage), (SIDE, X, True)) == []


def test_a_replay_touches_what_was_captured_behind_what_the_host_knows():
    captured = Order()
    captured.work(7, "op", 0, [given(X, True)])

    def replay(order):
        order.replay(SIDE, captured)

    assert raced((MAIN, X, False), replay) == [(MAIN, SIDE)]
    assert raced((MAIN, X, False), Order.synchronize, replay) == []
    assert raced(replay, (MAIN, X, False)) == [(SIDE, MAIN)]


def test_many_views_of_one_memory_are_remembered():
    slots = torch.zeros(200, 4)
    assert raced(*((MAIN, slot, True) for slot in slots), (SIDE, slots[0], False)) == [(MAIN, SIDE)]


def test_parts_that_nobody_knows_may_not_meet():
    order = Order()
    order.work(MAIN, "index", 0, [], [given(X, False)])
    order.work(SIDE, "copy", 0, [given(X[0], True)])
    order.work(THIRD, "copy", 0, [given(X, True)])
    assert [(race.first.name, race.second.stream, race.is_sure) for race in order.races] == [
        ("index", SIDE, False),
        ("index", THIRD, True),
        ("copy", THIRD, True),
    ]


# ---- programs ----


def staged(device, between=lambda held: None, before=lambda held: None, reset=None):
    """Pinned memory that is filled for each step and copied, with something `between` two fillings."""
    held = SimpleNamespace(
        pin=host(torch.zeros(4), pinned=True), x=torch.zeros(4, device=device), n=0,
        copied=torch.cuda.Event(), side=torch.cuda.Stream(), rows=torch.tensor([0, 1], device=device),
        page=host(torch.zeros(4)),
    )  # fmt: skip

    def vary():
        held.n += 1
        between(held)
        held.pin.fill_(held.n)
        held.x.copy_(held.pin, non_blocking=True)
        held.copied.record()

    return {"step": lambda: held.x * 2, "vary": vary, "reset": reset and (lambda: reset(held))}


def test_buffers_that_take_turns_are_written_again_when_they_come_round(device, backend):
    pins, x, copied = [host(torch.zeros(4), pinned=True) for _ in range(3)], torch.zeros(4, device=device), []

    def vary():
        pin = pins[len(copied) % 3]
        pin.fill_(len(copied))
        x.copy_(pin, non_blocking=True)
        copied.append(torch.cuda.Event())
        copied[-1].record()

    report = audit(lambda: x * 2, vary=vary, backend=backend)
    assert [(f.kind, f.subject) for f in report.findings] == [("missing-edge", "pins[0]")], str(report)


def other_event(held):
    with torch.cuda.stream(held.side):
        event = torch.cuda.Event()
        event.record()
    event.synchronize()


WAITS = {
    "event": (lambda held: held.copied.synchronize(), True),
    "stream": (lambda held: torch.cuda.current_stream().synchronize(), True),
    "device": (lambda held: torch.cuda.synchronize(), True),
    "polled": (lambda held: held.copied.query(), True),
    "polled stream": (lambda held: torch.cuda.current_stream().query(), True),
    "number": (lambda held: held.x[0].item(), True),
    "list": (lambda held: held.x.tolist(), True),
    "mask": (lambda held: held.x[held.x > 0], True),
    "copy into pageable memory": (lambda held: held.page.copy_(held.x, non_blocking=True), True),
    "nothing": (lambda held: None, False),
    "a list of Python's": (lambda held: held.pin.copy_(torch.tensor([1.0] * 4)), False),
    "gather": (lambda held: held.x[held.rows], False),
    "mask beside an index": (lambda held: held.x.view(2, 2)[held.x[:2] > -9, held.rows], True),
    "another stream": (lambda held: held.side.synchronize(), False),
    "another event": (other_event, False),
}


@pytest.mark.parametrize("how", WAITS)
def test_which_calls_make_the_host_wait(how, device, backend):
    between, waits = WAITS[how]
    report = audit(**staged(device, between), backend=backend)
    assert [(f.kind, f.subject) for f in report.findings] == [("missing-edge", "held.pin")] * (not waits)


def test_a_wait_in_reset_counts(device, backend):
    made = staged(device, reset=lambda held: held.copied.synchronize())
    assert not audit(**made, backend=backend).findings


@pytest.mark.parametrize("read", ["item", "tolist", "numpy", "sum"])
def test_what_a_copy_may_not_have_brought_yet_is_not_to_be_read(read, device, backend):
    x, pin = torch.ones(4, device=device), host(torch.zeros(4), pinned=True)

    def vary():
        pin.copy_(x, non_blocking=True)
        getattr(pin[:1], read)()
        x.add_(1)

    [found] = audit(lambda: x * 2, vary=vary, backend=backend).findings
    assert found.subject == "pin" and "the host reads it while aten.copy_" in found.evidence
    assert "getattr(pin[:1], read)()" in found.where.source


def test_a_caller_may_wait_where_the_program_marks_nothing(device, backend):
    x, pin = torch.ones(4, device=device), host(torch.zeros(4), pinned=True)

    side = torch.cuda.Stream()

    def vary():
        pin.add_(1)
        x.copy_(pin, non_blocking=True)
        side.wait_stream(torch.cuda.current_stream())  # has an event of its own, of torch's
        torch.cuda.current_stream().wait_stream(side)

    report = audit(lambda: x * 2, vary=vary, backend=backend)
    assert not report.findings and "unless the caller waits in between" in report.notes[0]


def test_rows_that_an_index_picks_may_be_others(device, backend):
    side, x, rows = torch.cuda.Stream(), torch.ones(4, 4, device=device), torch.tensor([0, 1], device=device)

    def vary():
        with torch.cuda.stream(side):
            x[3].add_(1)

    report = audit(lambda: x[rows] * 2, vary=vary, backend=backend)
    assert not report.findings
    # On a GPU what the other stream writes may land behind the look at what `vary` has changed.
    assert len([note for note in report.notes if "changed nothing" not in note]) == 1
    assert "unless they touch different parts of it" in report.notes[0]


def test_one_memory_is_told_once_and_results_count_as_written(device, backend):
    side, x = torch.cuda.Stream(), torch.ones(4, device=device)

    def step():
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            y = x * 2
        z = y + 1
        w = y + 2
        torch.cuda.current_stream().wait_stream(side)
        return y + z + w

    report = audit(step, vary=lambda: x.add_(1), backend=backend)
    [found] = report.findings
    assert found.kind == "missing-edge" and found.where.source == "z = y + 1"
    assert "aten.mul" in found.evidence


def test_graphs_from_before_the_audit_are_said_to_be_unknown(device, backend):
    side, x = torch.cuda.Stream(), torch.ones(4, device=device)
    graph = capture(lambda: x * 2, backend=backend)

    def step():
        graph.replay()
        return graph.outputs.clone()

    def vary():
        with torch.cuda.stream(side):
            x.add_(1)

    assert any("captured before the audit" in note for note in audit(step, vary=vary, backend=backend).notes)


def test_what_the_further_steps_write_is_put_back(device, backend):
    side, x = torch.cuda.Stream(), torch.ones(4, device=device)

    def vary():
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            x.add_(1)
        torch.cuda.current_stream().wait_stream(side)

    assert not audit(lambda: x * 2, vary=vary, backend=backend).findings
    assert x.tolist() == [2] * 4


def test_inputs_may_run_out(device, backend):
    x, pin, numbers = torch.ones(4, device=device), host(torch.zeros(4), pinned=True), iter([1, 2])

    def vary():
        pin.fill_(next(numbers))
        x.copy_(pin, non_blocking=True)

    assert not audit(lambda: x * 2, vary=vary, backend=backend).findings


def test_many_audits_with_events_leave_nothing_dangling(device, backend):
    """`torch.cuda.Event` does not clear the weak references to it: the next collection would crash."""
    for _ in range(3):
        audit(**staged(device, lambda held: held.copied.synchronize()), backend=backend)
    assert gc.collect() >= 0


def test_a_race_that_is_only_noted_hides_no_unwritten_read(device, backend):
    """Of an engine with a graph of its own; the caller may wait between its steps."""
    pin, x, made = host(torch.zeros(4), pinned=True), torch.zeros(4, device=device), []

    def step():
        pin.fill_(3)
        if not made:
            made.append(capture(lambda: x * 2, backend=backend))
        made[0].replay()
        return made[0].outputs + torch.empty(4, device=device)

    report = audit(step, vary=lambda: x.copy_(pin, non_blocking=True), backend=backend)
    assert [finding.kind for finding in report.findings] == ["unwritten-read"]
    assert any("unless the caller waits" in note for note in report.notes)


@pytest.mark.parametrize("is_filled_in_step", [True, False])
def test_what_the_host_fills_in_a_step_and_a_graph_copies_is_named(is_filled_in_step, device, backend):
    """By numpy, so that no op tells. Who fills it before the step is right."""
    held = SimpleNamespace(lengths=[3, 1, 2, 0], lens=torch.zeros(4, device=device))
    held.staging = host(torch.zeros(4), pinned=True)
    table = held.staging.numpy()

    def fill():
        table[:] = held.lengths

    def step():
        if is_filled_in_step:
            fill()
        held.lens.copy_(held.staging, non_blocking=True)
        return held.lens * 2

    def vary():
        held.lengths = [n + 1 for n in held.lengths]
        fill()
        if is_filled_in_step:
            table[:] = 0

    fill()
    report = audit(step, vary=vary, backend=backend)
    found = [(f.kind, f.subject) for f in report.findings]
    assert found == ([("stale-input", "held.staging")] if is_filled_in_step else []), str(report)
    assert not found or report.findings[0].where.source == "table[:] = held.lengths"
