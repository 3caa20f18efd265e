"""What counts as a difference: more than rounding does to this step, as one pass more has measured."""

import functools
import random
from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from mrv2lab.audit import audit, results
from mrv2lab.audit.driver import audit_engine
from mrv2lab.audit.passes import Engine, Passes
from mrv2lab.audit.results import Results, Written, nudge
from mrv2lab.errors import NotRepeatable
from mrv2lab.graphs import capture, host


@pytest.fixture
def passes(monkeypatch):
    """The passes that an audit makes, in order."""
    made = []
    for name in ("eager", "run"):
        original = getattr(Passes, name)

        def counted(self, *a, _name=name, _original=original, **k):
            made.append(_name)
            return _original(self, *a, **k)

        monkeypatch.setattr(Passes, name, counted)
    return made


def engine(device, backend, step, other=None, vary=None, cancels=0.0):
    """What an engine captures is `step(x)`; eagerly it runs the same, or what sums in another order."""
    numbers = torch.rand(16, generator=torch.Generator().manual_seed(0))
    x = (torch.cat([numbers, numbers.flip(0) * (cancels - 1)]) if cancels else numbers).to(device)
    graphs = []
    return Engine(
        "step",
        capture=lambda: graphs.append(capture(lambda: step(x), backend=backend)),
        run=lambda: graphs[0].replay() or graphs[0].outputs,
        eager=lambda: (other or step)(x),
        vary=vary or (lambda: x.mul_(1.37)),
        anchor=step,
        roots={"x": x},
    )


def forwards(x):
    return sum(x[i : i + 1] for i in range(len(x)))


def backwards(x):
    return sum(x[i : i + 1] for i in reversed(range(len(x))))


def in_one_op(x):
    return x.sum(0, keepdim=True)


def chaotic(sum_of):
    def step(x):
        y = sum_of(x) % 1
        for _ in range(60):
            y = 3.9 * y * (1 - y)
        return y

    return step


@pytest.mark.parametrize("cancels", [0.0, 1e-3])
def test_a_right_step_that_sums_in_another_order_is_not_accused(cancels, device, backend):
    one = engine(device, backend, forwards, in_one_op if cancels else backwards, cancels=cancels)
    assert not audit_engine(one, backend=backend).findings


def test_where_one_ulp_moves_a_result_far_it_excuses_nothing_and_the_report_says_so(device, backend):
    report = audit_engine(engine(device, backend, chaotic(forwards), chaotic(backwards)), backend=backend)
    assert report.findings and "what is found may be rounding" in str(report)


@pytest.mark.parametrize("moves", ["a draw", "a setting"])
def test_what_python_does_otherwise_in_another_pass_is_no_rounding(backend, device, moves):
    """The passes that are moved by ulps find what the eager one has found, or say nothing."""
    x, held = torch.rand(64, device=device), SimpleNamespace(n=1.0)
    factor = torch.ones(1).pin_memory() if device == "cuda" else host(torch.ones(1), pinned=True)
    scale = torch.ones(1, device=device)

    def step():
        factor[0] = held.n
        scale.copy_(factor, non_blocking=True)
        return x * scale

    def drawn():
        return x * (2 if random.random() < 0.5 else 3)

    def vary():
        held.n += 1
        x.add_(1)

    reports = []
    for seed in range(8) if moves == "a draw" else range(1):
        random.seed(seed)
        with suppress(NotRepeatable):  # as two eager passes drew
            reports.append(audit(drawn if moves == "a draw" else step, vary=vary, backend=backend))
    assert reports and all(one.findings for one in reports)
    assert not [note for one in reports for note in one.notes if "rounding" in note]


def masked(x):
    """All but the three largest, as a sampler does: at a bound that is one of its own numbers."""
    return x.masked_fill(x < x.topk(3).values[-1], float("-inf"))


@functools.cache
def memory(device):
    return torch.zeros(16, device=device)


def in_memory(x):
    return memory(x.device).copy_(x).mul_(1 / 3).masked_fill_(x > 0.5, 7.0)


@pytest.mark.parametrize(
    "result", [masked, in_memory, lambda x: (x == x.max()) * x], ids=["masked", "in_memory", "greedy"]
)
def test_what_selects_rounds_nothing(result, device, backend):
    scale = {"now": 1.0}
    step = lambda x: result((x + 0.1) * scale["now"])  # noqa: E731
    memory(device)  # not made by a capture
    one = engine(device, backend, step, vary=lambda: scale.update(now=1.3))
    assert audit_engine(one, backend=backend).findings[0].kind == "frozen-host-value"


@pytest.mark.parametrize("factor", [1.00005, 1.5])
def test_a_small_difference_in_a_step_that_rounding_hardly_moves_is_found(factor, device, backend):
    scale = {"now": 1.0}
    one = engine(device, backend, lambda x: forwards(x) * scale["now"], vary=lambda: scale.update(now=factor))
    (found, *_) = audit_engine(one, backend=backend).findings
    assert (found.kind, found.change) == ("frozen-host-value", (1.0, factor))


class State:
    """What the steps below read of Python's objects."""

    def __init__(self, now):
        self.now = now


def randn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def the_newest_token_left_out(device, dtype, e):
    q, k, v = (randn(8, n, 64, seed=n).to(device, dtype) for n in (1, 4096, 4097))
    x = (randn(16).to(device, dtype), q)
    return lambda: torch.softmax(q @ k[:, : e.now].mT / 8, -1) @ v[:, : e.now], x, (4095, 4096)


def one_number_of_a_row(device, dtype, e):
    x = randn(4, 4096).to(device, dtype)

    def step():
        y = x * 1.7
        y[:, : e.now] += 1
        return y

    return step, (x,), (4095, 4096)


def one_score_of_many(device, dtype, e):
    x = randn(4096).to(device, dtype)

    def step():
        y = x * 1.7
        y[e.now :].mul_(0.9)
        return y

    return step, (x,), (3, 4)


def a_float_of_it(device, dtype, e):
    step, *others = an_op_of_a_hundredth(device, dtype, e)
    return lambda: step().float(), *others


def an_op_of_a_hundredth(device, dtype, e):
    x, y = (randn(16, 512, seed=seed).to(device, dtype) for seed in (0, 1))
    return lambda: x * 1.3 + y * 0.015 if e.now else x * 1.3, (x,), (False, True)


def a_step_of_an_optimizer(device, dtype, e):
    if dtype is not torch.float32:
        pytest.skip("so small a step is less than one ulp of the weights")
    w, gradient = (randn(16, 512, seed=seed).to(device) for seed in (0, 1))

    def step():
        w.sub_(gradient * e.now)

    return step, (gradient,), (1e-5, 1.1e-5)


def scores_beside_a_mask(device, dtype, e):
    q, k = (randn(n, 64, seed=n).to(device, dtype) for n in (4, 128))
    mask = torch.arange(128, device=device) > 100
    return lambda: (q @ k.mT * e.now).masked_fill(mask, -1e4), (q,), (0.1, 0.11)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize(
    "made",
    [
        a_step_of_an_optimizer,
        scores_beside_a_mask,
        the_newest_token_left_out,
        one_number_of_a_row,
        one_score_of_many,
        an_op_of_a_hundredth,
        a_float_of_it,
    ],
)
def test_little_that_is_lost_is_found_in_half_precision_too_and_named(made, dtype, device, backend):
    e = State(None)
    step, inputs, (old, new) = made(device, dtype, e)
    e.now = old
    vary = lambda: (setattr(e, "now", new), [x.mul_(1.1) for x in inputs])  # noqa: E731
    found = audit(step, vary=vary, backend=backend).findings
    assert [(one.kind, one.subject, one.change) for one in found][:1] == [
        ("frozen-host-value", "e.now", (old, new))
    ]


def in_parts(x, w, num_parts):
    size = len(w) // num_parts
    parts = (slice(i * size, (i + 1) * size) for i in range(num_parts))
    return sum(x[..., part] @ w[part] for part in parts)


def a_product(x, w, e):
    return in_parts(x, w, e.now)


def layers(x, w, e):
    for _ in range(4):
        x = torch.nn.functional.rms_norm(x + torch.nn.functional.silu(in_parts(x, w, e.now)), w.shape[:1])
    return x


def a_loss(x, w, e):
    return torch.tanh(in_parts(x, w, e.now)).square().mean()


@functools.cache
def cached(device, dtype):
    return randn(64, 512, seed=7).to(device, dtype)


def logits(x, w, e):
    return torch.log_softmax(layers(x, w, e).float(), -1)


def a_float_of_a_sum(x, w, e):
    return in_parts(x, w, e.now).float()


def in_a_cache(x, w, e):
    cached(x.device, x.dtype)[:8] += in_parts(x, w, e.now)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("result", [a_product, layers, a_loss, in_a_cache, a_float_of_a_sum, logits])
def test_a_frozen_number_of_parts_changes_no_more_than_rounding(result, dtype, device, backend):
    e = State(1)
    x, w = randn(8, 512).to(device, dtype), (randn(512, 512, seed=1) / 22).to(device, dtype)
    cached(x.device, dtype)  # not made by a capture
    report = audit(lambda: result(x, w, e), vary=lambda: setattr(e, "now", 8), backend=backend)
    assert not report.findings
    assert any("frozen, with" in note and "num_parts" in note for note in report.notes)


def test_steps_in_a_row_are_as_many_times_as_far_apart_by_rounding(device, backend):
    e, memory = State(1), randn(16, 64, seed=1).to(device, torch.bfloat16)
    parts = randn(64, 16, 64).abs().to(device, torch.bfloat16) / 20

    def step():
        for part in (parts, [parts.sum(0)])[e.now > 1]:
            memory.add_(part)

    report = audit(step, vary=lambda: setattr(e, "now", 2), backend=backend)
    assert not report.findings and "as rounding explains: e.now" in report.notes[0]


def test_what_may_be_rounding_is_told_only_where_rounding_goes_as_far(device, backend):
    scale = State(1.0)
    vary = lambda: setattr(scale, "now", 1e-3)  # noqa: E731
    one = engine(device, backend, lambda x: chaotic(forwards)(x) * scale.now, vary=vary)
    report = audit_engine(one, backend=backend)
    assert report.findings and not report.notes


def test_one_number_that_an_engine_writes_into_a_row_of_its_cache_is_compared(device, backend):
    """Rows in which the eager pass writes are looked at, however little of them that is."""
    scale, cache = State(1.0), torch.zeros(64, 512, device=device)
    at = tuple(torch.tensor([i], device=device) for i in (7, 30))

    def step(x):
        cache.index_put_(at, x[:1] * scale.now)
        return x * 2

    one = engine(device, backend, step, vary=lambda: setattr(scale, "now", 1.5))
    found = audit_engine(one, backend=backend).findings
    assert [(each.kind, each.change) for each in found] == [("frozen-host-value", (1.0, 1.5))]


def test_another_pass_is_made_only_where_results_are_off(device, backend, passes):
    if backend == "cuda":
        pytest.skip("there the same sum may come in another order")
    audit_engine(engine(device, backend, forwards), backend=backend)
    alike = passes.count("eager"), passes.count("run")
    passes.clear()
    audit_engine(engine(device, backend, forwards, backwards), backend=backend)
    assert alike == (2, 1) and passes.count("eager") <= 3


ONES = {number: torch.ones(number) for number in (4, 64)}


def compared(run, eager=ONES[64], again=None, nudged=None, before=None, tensor=None):
    """A result, or what `tensor` holds: after a run, after eager passes, and after one moved by one ulp."""

    def held(value):
        value = eager if value is None else value
        if before is None:
            return Results({"out": value}, [])
        return Results({}, [Written(tensor, before, value)])

    def nudge(types):
        return held(nudged), {torch.float32}

    return results.Comparison(held(run), held(None), held(again), True, lambda tensor: "memory", nudge)


HALF = {number: ones.to(torch.bfloat16) for number, ones in ONES.items()}
FP16 = {number: torch.ones(number, dtype=torch.float16) for number in (4, 16)}


@pytest.mark.parametrize(
    ("is_found", "run", "passes"),
    [
        (False, 1 + 5e-3, {"nudged": 1 + 1e-4}),  # 64 times
        (True, 1 + 7e-3, {"nudged": 1 + 1e-4}),
        (True, 1 + 2e-2, {"nudged": 1 + 5e-4}),  # which would explain three hundredths
        (False, 1 + 5e-4, {"again": 1 + 1e-5}),  # chance
        (True, 1 + 5e-4, {"again": 1.0}),
        (False, 1 + 1 / 64, {"nudged": 1 + 1 / 64, "eager": HALF[64]}),
        (True, 1 + 2 / 64, {"nudged": 1 + 1 / 64, "eager": HALF[64]}),
        (False, 1 + 3 / 256, {"nudged": 1 + 1 / 256, "eager": HALF[4]}),  # few numbers
        (True, 1 + 2 / 128, {"nudged": 1 + 1 / 128, "eager": HALF[64]}),
        (False, 1 + 3 / 1024, {"nudged": 1 + 1 / 1024, "eager": FP16[4]}),
        (True, 1 + 5 / 1024, {"nudged": 1 + 1 / 1024, "eager": FP16[4]}),
        (True, 1 + 3 / 1024, {"nudged": 1 + 1 / 1024, "eager": FP16[16]}),
    ],
)
def test_what_rounding_explains(is_found, run, passes):
    eager = passes.pop("eager", ONES[64])
    passes = {name: eager * value for name, value in passes.items()}
    assert bool(compared(eager * run, eager, **passes).differs(False)) is is_found


@pytest.mark.parametrize("ulps", [1, 10])
def test_what_is_added_to_memory_is_rounded_as_that_is_and_once(ulps):
    tensor, before = torch.ones(64), torch.ones(64)
    after = before + 1e-3
    run = after + ulps * torch.finfo(torch.float32).eps
    one = compared(run, after, nudged=after, before=before, tensor=tensor)
    assert bool(one.differs(False)) is (ulps == 10)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_what_is_nudged_moves_by_one_ulp_and_what_was_not_rounded_stays(dtype):
    exact = torch.tensor([0.0, 1.0, 3.0, -2.5, float("inf")], dtype=dtype)
    even = torch.full((1,), 1 + 2 * torch.finfo(dtype).eps, dtype=dtype)  # its last bit is zero, and no more
    moved = even.clone()
    nudge(moved)
    assert moved - even == torch.finfo(dtype).eps
    third = torch.full((7,), 1 / 3, dtype=dtype)
    whole = torch.cat([exact, third])
    nudge(whole)
    assert torch.equal(whole[:5], exact)
    ulp = torch.finfo(dtype).eps / 4
    assert ((whole[5:] - third).abs() - ulp).abs().max() < ulp / 2


def as_many_others(x):
    return functools.reduce(torch.sub, (x[i : i + 1] for i in range(len(x))), 0)


@pytest.mark.parametrize("again", [forwards, in_one_op, as_many_others])
def test_what_only_a_sensitive_step_explains_is_believed_if_the_kernels_are_the_same(again, monkeypatch):
    """One ulp moves the sum of numbers that cancel; a setting that chooses a kernel may hide behind that."""
    one = engine("cpu", "emulated", forwards, lambda x: forwards(x) * (1 + 2e-3), cancels=1e-3)
    x = one.roots["x"]
    audited = replace(one, afresh=lambda: capture(lambda: again(x), backend="emulated"))
    monkeypatch.setattr(results, "TOLERANCE", {torch.float32: 1e-6})
    monkeypatch.setattr(results.Comparison, "_explained", lambda self, seen, **_: 1e-2)
    found = audit_engine(audited, backend="emulated").findings
    assert bool(found) is (again is not forwards)


def test_what_rounding_explains_everywhere_needs_no_other_kernels(device, backend):
    one = engine(device, backend, forwards, backwards)
    x = one.roots["x"]
    audited = replace(one, afresh=lambda: capture(lambda: in_one_op(x), backend=backend))
    assert not audit_engine(audited, backend=backend).findings


def test_what_one_ulp_moves_by_more_than_a_hundredth_is_no_measure(device, backend):
    """The sum is lost in what it is made of, and so is what is wrong with it."""
    one = engine(device, backend, forwards, lambda x: forwards(x) * 1.02, cancels=1e-4)
    report = audit_engine(one, backend=backend)
    assert report.findings and "what is found may be rounding" in str(report.notes)


def test_what_chance_does_from_one_eager_pass_to_the_next_is_no_finding(device, backend):
    """As atomic additions, whose order nobody knows."""
    passes = iter(range(100))
    one = engine(device, backend, forwards, lambda x: forwards(x) * (1 + 1e-5 * next(passes)))
    report = audit_engine(one, backend=backend)
    assert not report.findings


@pytest.mark.parametrize("factor", [1 + 1e-6, 1.3])
def test_what_some_ulps_turn_over_where_one_does_not_may_be_rounding(factor, device, backend):
    """Each number lies some ulps below the middle between two that it is rounded to."""
    near = 3 * (torch.arange(16.0, device=device) + 0.5) * (1 - 5e-7)
    one = engine(device, backend, lambda x: (x / 3).round(), lambda x: (x * factor / 3).round())
    one = replace(one, vary=lambda: one.roots["x"].copy_(near))
    report = audit_engine(one, backend=backend)
    assert report.findings and ("some ulps in each op move" in str(report.notes)) is (factor < 1.1)


@pytest.mark.parametrize("off", [1e-4, 1e-5])
def test_a_row_is_measured_without_what_no_ulp_moves(off):
    """One ulp moves one number, and the run is off in all but those of a mask, by less than one may be."""
    eager = torch.cat([torch.ones(1, 1024), torch.full((1, 1024), 1000.0)], dim=1)
    run, nudged = eager.clone(), eager.clone()
    run[:, :1024] += off
    nudged[0, 0] += 1e-5
    assert bool(compared(run, eager, nudged=nudged).differs(False)) is (off == 1e-4)


@pytest.mark.parametrize("by_capture", [False, True])
def test_a_note_of_a_cost_is_not_of_what_capturing_itself_changes(device, backend, by_capture):
    x, state = torch.arange(8.0, device=device), SimpleNamespace(parts=1)

    def step():
        captures = torch.cuda.is_current_stream_capturing()
        parts = 4 if by_capture and captures else state.parts
        return torch.stack([part.sum() for part in x.chunk(parts)]).sum()

    def vary():
        x.add_(1)
        state.parts = 1 if by_capture else 4

    notes = audit(step, vary=vary, backend=backend).notes
    assert any("frozen, with the same result: state.parts:" in note for note in notes) != by_capture
    assert not any("captures" in note for note in notes)
