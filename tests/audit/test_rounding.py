"""What counts as a difference: more than rounding does to this step, as one pass more has measured."""

import functools
from dataclasses import replace

import pytest
import torch

from mrv2lab.audit import results
from mrv2lab.audit.driver import audit_engine
from mrv2lab.audit.passes import Engine, Passes
from mrv2lab.audit.results import nudge
from mrv2lab.graphs import capture


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


def engine(device, backend, step, other=None, vary=None, cancels=False):
    """What an engine captures is `step(x)`; eagerly it runs the same, or what sums in another order."""
    numbers = torch.rand(16, generator=torch.Generator().manual_seed(0))
    x = (torch.cat([numbers, numbers.flip(0) * (1e-3 - 1)]) if cancels else numbers).to(device)
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


@pytest.mark.parametrize("cancels", [False, True])
def test_a_right_step_that_sums_in_another_order_is_not_accused(cancels, device, backend):
    one = engine(device, backend, forwards, in_one_op if cancels else backwards, cancels=cancels)
    assert not audit_engine(one, backend=backend).findings


def test_where_one_ulp_moves_a_result_far_it_excuses_nothing_and_the_report_says_so(device, backend):
    report = audit_engine(engine(device, backend, chaotic(forwards), chaotic(backwards)), backend=backend)
    assert report.findings and "what is found may be rounding" in str(report)


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


def test_another_pass_is_made_only_where_results_are_off(device, backend, passes):
    if backend == "cuda":
        pytest.skip("there the same sum may come in another order")
    audit_engine(engine(device, backend, forwards), backend=backend)
    alike = passes.count("eager"), passes.count("run")
    passes.clear()
    audit_engine(engine(device, backend, forwards, backwards), backend=backend)
    assert alike == (2, 1) and passes.count("eager") <= 3


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_what_is_nudged_moves_by_one_ulp_and_what_was_not_rounded_stays(dtype):
    exact = torch.tensor([0.0, 1.0, 3.0, -2.5, float("inf")], dtype=dtype)
    third = torch.full((7,), 1 / 3, dtype=dtype)
    whole = torch.cat([exact, third])
    nudge(whole)
    assert torch.equal(whole[:5], exact)
    ulp = torch.finfo(dtype).eps / 4
    assert ((whole[5:] - third).abs() - ulp).abs().max() < ulp / 2


@pytest.mark.parametrize("other", [False, True])
def test_what_only_a_sensitive_step_explains_is_believed_if_the_kernels_are_the_same(other, monkeypatch):
    """One ulp moves the sum of numbers that cancel; a setting that chooses a kernel may hide behind that."""
    one = engine("cpu", "emulated", forwards, lambda x: forwards(x) * (1 + 2e-3), cancels=True)
    again = (lambda x: x.sum(0, keepdim=True)) if other else forwards
    x = one.roots["x"]
    audited = replace(one, afresh=lambda: capture(lambda: again(x), backend="emulated"))
    monkeypatch.setattr(results, "TOLERANCE", {torch.float32: 1e-6})
    monkeypatch.setattr(results.Comparison, "_rounding", lambda self, seen: 1e-2)
    found = audit_engine(audited, backend="emulated").findings
    assert bool(found) is other
