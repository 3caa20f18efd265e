"""Each program with something wrong: kind, subject and line of the first finding. Each right one: nothing."""

import functools
import operator
import sys
import threading
from pathlib import Path

import pytest
import torch

from mrv2lab.audit import AuditError, audit, audit_target, lines, ops
from mrv2lab.audit.branches import parted_before
from mrv2lab.audit.evidence import kept
from mrv2lab.graphs import host

programs = sys.modules["audit_programs"]


def audited(make, device, backend):
    program = make(device)
    return audit(program.step, vary=program.vary, reset=program.reset, backend=backend)


@pytest.mark.parametrize("make", programs.WRONG, ids=lambda make: make.__name__)
def test_what_is_wrong_is_found_first_and_named(make, device, backend):
    report = audited(make, device, backend)
    kind, *subjects = programs.WRONG[make]
    assert report.findings, "nothing found"
    first = report.findings[0]
    assert first.kind == kind and first.subject in subjects, str(report)
    assert first.where is not None and first.where.file == programs.__file__
    assert first.where.source


def test_what_is_left_under_another_name_beside_what_is_right_is_told(device, backend):
    report = audited(programs.left_under_another_name_beside_a_count, device, backend)
    assert [(f.kind, f.subject) for f in report.findings] == [("diverged", "w.found['high']")], str(report)


def test_what_one_huge_element_hides_on_a_gpu_shows_in_the_bits_of_the_emulator():
    """On a GPU, where sums come in any order, a row's norm is the measure."""
    report = audited(programs.masked_logits, torch.device("cpu"), "emulated")
    assert [(f.kind, f.subject) for f in report.findings] == [("frozen-host-value", "w.n")], str(report)


def test_making_a_constant_is_no_kernel(device, backend):
    found = audited(programs.appended_to_warm_up, device, backend).findings
    assert [f.subject for f in found if f.kind == "lost-kernel"] in ([], ["aten._to_copy"])


@pytest.mark.parametrize("make", programs.RIGHT, ids=lambda make: make.__name__)
def test_what_is_right_is_left_alone(make, device, backend):
    report = audited(make, device, backend)
    assert report.findings == (), str(report)


def test_a_view_that_is_bound_to_another_part_of_the_same_memory_has_moved(device, backend):
    """Of two views of one cache each has its own name."""
    cache, w = torch.arange(32.0, device=device).view(2, 2, 8), programs.Worker(device)
    w.k, w.v = cache[0]

    def vary():
        w.k, w.v = cache[1]

    report = audit(lambda: (w.k * 2, w.v[4:] * w.x[4:], cache.sum()), vary=vary, backend=backend)
    assert [(f.kind, f.subject) for f in report.findings] == [("moved-address", f"w.{n}") for n in "kv"]


@pytest.mark.parametrize("how", [lambda q, v: q @ v, lambda q, v: torch.einsum("hd,td->th", q, v.t())])
def test_a_view_that_is_bound_anew_with_other_strides_is_named(how, device, backend):
    """At the address where it was; of strides in one row nobody can tell."""
    w, one = programs.Worker(device), torch.ones(1, 4, device=device)
    w.v, w.q, w.row = torch.rand(4, 4, device=device), torch.rand(2, 4, device=device), one

    def vary():
        w.v, w.row = w.v.t(), one.as_strided((1, 4), (9, 1))

    report = audit(lambda: how(w.q, w.v) + (w.row * 2).sum(), vary=vary, backend=backend)
    assert [(f.kind, f.subject) for f in report.findings] == [("moved-address", "w.v")], str(report)


def test_of_a_table_of_ten_addresses_the_last_is_followed_too(device, backend):
    w, x = programs.Worker(device), torch.ones(4, device=device)
    w.lora = [torch.ones(4, device=device) for _ in range(10)]
    table = torch.tensor([t.data_ptr() for t in w.lora], device=device)

    def vary():
        x.mul_(2)
        w.lora[9] = torch.ones(4, device=device)

    report = audit(lambda: (x * (table > 0).sum(), w.lora), vary=vary, backend=backend)
    assert [(f.kind, f.subject) for f in report.findings] == [("moved-address", "w.lora[9]")], str(report)


def test_another_part_of_a_tensor_that_stays_has_not_moved(device, backend):
    w = programs.Worker(device, n=4)
    report = audit(lambda: w.x[w.n :] * 2, vary=lambda: w.x.add_(1), backend=backend)
    assert report.findings == ()
    report = audit(lambda: w.x[w.n : w.n + 4] * 2, vary=programs.varied(w, n=0), backend=backend)
    assert {(f.kind, f.subject) for f in report.findings} == {("frozen-host-value", "w.n")}


def test_a_grid_that_follows_the_frozen_value_is_a_finding_too(device, backend):
    assert "frozen-grid" in audited(programs.grid_by_length, device, backend).kinds


@pytest.mark.parametrize("make", [programs.unwritten_index, programs.index_computed_from_unwritten_memory])
def test_memory_is_never_addressed_by_what_nobody_wrote(make, device, backend):
    (found,) = audited(make, device, backend).findings
    assert "takes addresses or loop bounds from it" in found.evidence


KEEP_GARBAGE = {
    "add": lambda i: i + 1,
    "sub": lambda i: i - 1,
    "rsub": lambda i: 1 - i,
    "mul": lambda i: i * 2,
    "neg": lambda i: -i,
    "to": lambda i: i.to(torch.int32),
    "clone": lambda i: i.clone(),
    "copy_": lambda i: torch.zeros_like(i).copy_(i),
    "add_": lambda i: i.add_(1),
    "sub_": lambda i: i.sub_(1),
    "mul_": lambda i: i.mul_(2),
    "neg_": lambda i: i.neg_(),
    "one after the other": lambda i: (i + 1).mul_(2),
}
BOUND_IT = {
    "clamp": lambda i: i.clamp(0, 7),
    "remainder": lambda i: i % 8,
    "and": lambda i: i & 7,
    "where": lambda i: torch.where(torch.arange(8, device=i.device) < 4, i, 0),
    "sort": lambda i: i.argsort(),
    "clamp_": lambda i: i.clamp_(0, 7),
    "remainder_": lambda i: i.remainder_(8),
    "and_": lambda i: i.bitwise_and_(7),
    "bound once": lambda i: (i + 1).clamp_(0, 7),
    "filled": lambda i: (i + 1).fill_(3),
    "filled with a number of the host's": lambda i: i.copy_(host(torch.tensor(3))),
}


@pytest.mark.parametrize("op", KEEP_GARBAGE.values(), ids=KEEP_GARBAGE)
def test_what_is_computed_from_a_garbage_index_addresses_nothing(op, device, backend):
    w = programs.Worker(device)

    def step():
        index = torch.empty(8, dtype=torch.int64, device=device)
        rows = op(index)
        return w.x[rows]

    (found,) = audit(step, vary=w.new_inputs, backend=backend).findings
    assert (found.kind, found.subject) == ("unwritten-read", "index")
    assert "takes addresses or loop bounds from it" in found.evidence


@pytest.mark.parametrize("op", BOUND_IT.values(), ids=BOUND_IT)
def test_an_index_that_was_bound_may_address(op, device, backend):
    w = programs.Worker(device)

    def step():
        index = torch.empty(8, dtype=torch.int64, device=device)
        index[:4] = torch.arange(4, device=device)
        rows = op(index)
        return w.x[rows][:4] * (rows[:4] >= 0)

    findings = audit(step, vary=w.new_inputs, backend=backend).findings
    assert not any("takes addresses" in found.evidence for found in findings), findings


UPDATES = {
    "add_": lambda t: t.add_(1),
    "sub_": lambda t: t.sub_(1),
    "mul_": lambda t: t.mul_(2),
    "div_": lambda t: t.div_(2),
    "pow_": lambda t: t.pow_(2),
    "neg_": lambda t: t.neg_(),
    "exp_": lambda t: t.exp_(),
    "relu_": lambda t: t.relu_(),
    "tanh_": lambda t: t.tanh_(),
    "clamp_": lambda t: t.clamp_(-5, 5),
    "lerp_": lambda t: t.lerp_(torch.ones_like(t), 0.5),
    "addcmul_": lambda t: t.addcmul_(torch.ones_like(t), torch.ones_like(t)),
    "+=": lambda t: operator.iadd(t, 1),
}


@pytest.mark.parametrize("update", UPDATES.values(), ids=UPDATES)
def test_an_update_of_what_nobody_wrote_writes_nothing(update, device, backend):
    w = programs.Worker(device)

    def step():
        if w.table is None:
            w.table = torch.empty(8, device=device)
        update(w.table[:4])
        return w.table[:4] + w.x[:4]

    first = audit(step, vary=w.new_inputs, backend=backend).findings[0]
    assert (first.kind, first.subject) == ("unwritten-read", "w.table")


@pytest.mark.parametrize(
    "write", [torch.Tensor.zero_, lambda t: t.fill_(2), lambda t: t.copy_(torch.ones_like(t))]
)
def test_a_workspace_that_was_written_is_no_finding(write, device, backend):
    w = programs.Worker(device)

    def step():
        if w.table is None:
            w.table = torch.empty(8, device=device)
            write(w.table)
        return w.table * w.x

    assert audit(step, vary=w.new_inputs, backend=backend).findings == ()


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


def test_a_shape_that_follows_from_a_longer_tensor_is_no_value_of_its_own(device, backend):
    w = programs.Worker(device)
    w.x = torch.ones(2, 4, device=device)

    def vary():
        w.x = torch.ones(3, 4, device=device)

    findings = audit(lambda: w.x.flatten() * 2, vary=vary, backend=backend).findings
    assert [(f.kind, f.subject) for f in findings] == [("moved-address", "w.x")]


def test_of_what_a_branch_calls_state_is_the_reason_and_no_local_of_it(device, backend):
    w = programs.Worker(device)
    calls = iter(range(99))

    def wanted():
        number = next(calls)
        _ = number + 1
        return w.n > 2

    def step():
        y = w.x * 2
        if wanted():
            y = y.sqrt()
        return y

    first = audit(step, vary=programs.varied(w, n=5), backend=backend).findings[0]
    assert (first.kind, first.subject) == ("frozen-host-value", "w.n")


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
        ("lost-kernel", "aten.neg_"),  # nothing of the cache, its owner: only the reset has let go of it
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


@pytest.mark.parametrize(
    "make",
    [
        programs.none_where_a_tensor_was,
        programs.a_number_beside_the_result,
        programs.text_beside_the_result,
    ],
)
def test_what_differs_without_work_of_the_device_diverges(make, device, backend):
    [finding] = audited(make, device, backend).findings
    assert (finding.kind, finding.subject) == ("diverged", "the returned value[1]")


def test_a_count_of_calls_beside_the_result_is_none(device, backend):
    w = programs.Worker(device)

    def step():
        w.n += 1
        return w.x * 2, w.n

    assert audit(step, vary=w.new_inputs, backend=backend).findings == ()


def test_a_result_that_nobody_can_see_is_not_called_right(device, backend):
    w = programs.Worker(device)

    def step():
        w.x.mul(w.n)

    with pytest.raises(AuditError, match=r"step leaves no result .* its last work: aten\.mul at .*\. Return"):
        audit(step, vary=lambda: setattr(w, "n", 3), backend=backend)


def test_what_a_frozen_value_did_to_a_grid_is_said_with_both_values(device, backend):
    told = str(audited(programs.grid_by_length, device, backend))
    assert "was 2 at capture, is 8 now; it sizes the grid of scale_kernel" in told


def test_of_much_work_that_hung_on_a_branch_five_kinds_are_named(device, backend):
    w = programs.Worker(device)

    def step():
        y = w.x * 2
        if w.flag:
            y = y.sqrt().exp().sin().cos().tanh().abs()
        return y

    text = audit(step, vary=lambda: setattr(w, "flag", True), backend=backend).findings[0].evidence
    assert text.endswith("left out at capture: aten.sqrt, aten.exp, aten.sin, aten.cos, aten.tanh"), text


def test_of_two_branches_the_nearest_before_the_lost_work_is_the_reason(device, backend):
    w = programs.Worker(device)

    def step():
        y = w.x * 2
        if w.flag:
            y = y + 1
        if w.n > 2:
            return y
        return y.sqrt()

    def vary():
        w.flag, w.n = True, 2

    w.n = 3
    with kept() as seen:
        report = audit(step, vary=vary, backend=backend)
    (reason,) = [f for f in report.findings if "aten.sqrt" in f.evidence]
    assert (reason.kind, reason.subject) == ("frozen-host-value", "w.n"), str(report)
    (evidence,) = seen
    (lost,) = [event for event in evidence.missing() if event.name == "aten.sqrt"]
    assert parted_before(evidence.captures[0].trace, evidence.eager, lost.key[0])[0] == "w.n"


def test_of_memory_that_nobody_wrote_only_what_is_read_is_named(device, backend):
    def step():
        unread = [torch.empty(4, device=device) for _ in range(3)]
        read = torch.empty(4, device=device)
        del unread
        return read + 1

    report = audit(step, backend=backend)
    assert [(f.kind, f.subject) for f in report.findings] == [("unwritten-read", "read")], str(report)


def test_of_memory_that_was_kept_unwritten_only_what_is_read_is_named(device, backend):
    w, unread = programs.Worker(device), []

    def step():
        if w.table is None:
            w.table = torch.empty(8, device=device)
            unread.extend(torch.empty(8, device=device) for _ in range(3))
        return w.table[:4] + w.x[:4]

    report = audit(step, vary=w.new_inputs, backend=backend)
    assert [(f.kind, f.subject) for f in report.findings] == [("unwritten-read", "w.table")], str(report)


def test_an_audit_keeps_no_temporary_of_a_capture(device, backend):
    x, reused = torch.ones(1 << 16, device=device), []

    def step():
        first = (x * 2).neg_().data_ptr()
        reused.append(first == (x * 3).data_ptr())
        return x + 1

    assert audit(step, backend=backend).findings == ()
    assert reused[1]  # in the capture, behind the warm-up


@pytest.mark.parametrize("make", [programs.planned_once, programs.left_early, programs.used_pointer])
def test_without_monitors_lines_are_traced_as_python_3_11_can(make, device, backend, monkeypatch):
    for module in (lines, ops):
        monkeypatch.setattr(module, "MONITORS", False)

    def mine(frame, event, argument):
        return None

    before = sys.gettrace()
    sys.settrace(mine)
    try:
        report = audited(make, device, backend)
        after = sys.gettrace()
    finally:
        sys.settrace(before)
    assert (report.findings[0].kind, report.findings[0].subject) == programs.WRONG[make], str(report)
    assert report.findings[0].where is not None
    assert after is mine


@pytest.mark.parametrize("eps", [1e-12, 1e-3])
def test_a_frozen_factor_that_cancels_again_is_no_fault_and_one_that_does_not_is(eps, device, backend):
    """Of a row that is scaled to unit length only rounding is left of the factor, but for what is added."""
    held = programs.Worker(device)
    held.n = 3

    def step():
        pooled = held.x * (1.0 / held.n)
        return pooled / (pooled.norm() + eps)

    def vary():
        held.x.add_(0.37)
        held.n = 7

    report = audit(step, vary=vary, backend=backend)
    subjects = [(f.kind, f.subject) for f in report.findings]
    assert subjects == ([("frozen-host-value", "held.n")] if eps > 1e-6 else []), str(report)


def test_inputs_that_are_expanded_are_moved_and_put_back(device, backend):
    """A grid is, as `meshgrid` makes it."""
    held = programs.Worker(device)
    held.table = torch.linspace(0.1, 1.0, 4, device=device)
    held.grid = torch.meshgrid(held.table, held.table, indexing="ij")

    def step():
        return (held.grid[0] * held.table).sum(0) * held.scale

    def vary():
        held.table = held.table * 1.5

    held.scale = 1.0
    before = [t.clone() for t in held.grid]
    report = audit(step, vary=vary, backend=backend)
    assert [(f.kind, f.subject) for f in report.findings] == [("moved-address", "held.table")], str(report)
    assert all(map(torch.equal, held.grid, before))
