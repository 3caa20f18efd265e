"""The missing test: judged by the colours it shows, on real runs of the cases."""

import sys
from collections import Counter
from contextlib import suppress
from dataclasses import replace

import pytest
import torch

from mrv2lab.audit import audit_eager
from mrv2lab.cases import get
from mrv2lab.cases.exercises import missing_test
from mrv2lab.cases.lora_device_assert import filled_memory
from mrv2lab.errors import BadInput

CASES = {
    "lora_short_circuit": {"num_layers": 1, "batch_size": 2, "num_steps": 9},
    "breakable_graph": {"num_layers": 1, "batch_size": 2, "num_steps": 9},
    "flashmla_lazy_init": {"batch_size": 2},
    "pp_eager_fallback": {"batch_size": 2, "num_steps": 9},
    "stale_view": {"batch_size": 2, "num_steps": 9},
}


pytestmark = pytest.mark.usefixtures("few_sizes")


def right_and_replayed(seen):
    """Told of any case: answers as without graphs, and graphs that ran."""
    for step, wanted in zip(seen.steps, seen.reference, strict=True):
        assert torch.allclose(step.logits, wanted.logits, rtol=1e-3, atol=1e-4)
    assert any(step.num_replays for step in seen.steps)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name == "flashmla_lazy_init")) for name in CASES]
)
def test_answers_and_replays_together_tell_every_case(name):
    checked = get(name).check_test(right_and_replayed, rung="emulated", **CASES[name])
    assert checked.solved, checked
    assert {c.row[2] for c in checked.colours} == {"red", "green"}
    assert repr(checked).startswith("solved\n") and checked.why == ""


def judged(test, name="breakable_graph"):
    return get(name).check_test(test, rung="emulated", **CASES[name])


def always_red(seen):
    assert False, "no"  # noqa: B011


def always_green(seen):
    pass


def with_itself(seen):
    for step in seen.steps:
        assert torch.equal(step.logits, step.logits.clone())


def answers_only(seen):
    for step, wanted in zip(seen.steps, seen.reference, strict=True):
        assert torch.allclose(step.logits, wanted.logits, rtol=1e-3, atol=1e-4)


def misspelt(seen):
    assert seen.replays


def returns(seen):
    return False


def stub(seen):
    raise NotImplementedError


@pytest.mark.parametrize(
    ("test", "why"),
    [
        (always_red, "red on piecewise, which holds: AssertionError: no. It is red on every variant"),
        (always_green, "green on unrouted, and it has looked at nothing of the run."),
        (returns, "green on unrouted, and it has looked at nothing of the run."),
        (with_itself, "green on unrouted: it has looked at the run's own steps and at nothing beside them."),
        (answers_only, "green on unrouted: reference, steps did not tell it"),
        (misspelt, "red on piecewise, which holds: AttributeError: a run has no replays; possible: steps"),
    ],
)
def test_a_test_that_tells_nothing_is_told_why(test, why):
    checked = judged(test)
    assert not checked.solved and checked.why.startswith(why)
    assert "not solved yet" in checked._repr_html_()


def test_a_stub_is_a_stub():
    assert repr(judged(stub)).startswith("not solved yet: stub is still the stub")


def test_what_a_test_changes_the_next_one_does_not_see():
    def spoils(seen):
        seen.steps.clear()
        seen.reference.clear()

    judged(spoils)
    assert judged(right_and_replayed).solved


def test_a_variant_that_crashes_is_left_out_where_others_fail():
    asked = [colour.variant for colour in judged(always_green, "stale_view").colours]
    assert "own_copies" in asked and "kept_pairs" not in asked


def test_what_is_no_function_is_refused():
    with pytest.raises(BadInput, match="give the function itself"):
        judged(3)


# ---- a test that counts ----


def orders(monkeypatch, seed):
    monkeypatch.setattr(missing_test, "randbits", lambda _: seed)


def test_every_variant_is_shown_equally_often_in_an_order_of_its_own(monkeypatch):
    seen = []
    for seed in (1, 1, 2):
        orders(monkeypatch, seed)
        shown = []
        judged(lambda given, shown=shown: shown.append(given.metrics["graph_nodes"] if given.metrics else 0))
        seen.append(shown)
    assert seen[0] == seen[1] != seen[2]
    assert Counter(seen[0]) == Counter(seen[2]) and min(Counter(seen[0]).values()) >= missing_test.TIMES


@pytest.mark.parametrize("reds", [[True, False], [True] * 5 + [False] * 5])
def test_a_test_that_counts_its_calls_has_to_guess(reds):
    calls = iter(reds * 5)

    def counts(given):
        assert not next(calls)

    # Of 252 orders one is the counted one; this seed draws another.
    with pytest.MonkeyPatch.context() as monkeypatch:
        orders(monkeypatch, 3)
        checked = get("lora_device_assert").check_test(counts, rung="emulated")
    assert not checked.solved
    assert "times: a test must go by what it is given" in checked.why and "now red, now green" in repr(
        checked
    )


def test_a_test_that_is_right_by_luck_has_looked_at_nothing(monkeypatch):
    monkeypatch.setattr(missing_test, "randbits", lambda _: 3)
    roles = [v.role for v in get("breakable_graph").variants if v.role != "baseline"] * missing_test.TIMES
    shown = iter(missing_test.shuffled(3, roles))

    def knows(given):
        assert next(shown) == "fixed"

    checked = judged(knows)
    assert all(colour.is_right for colour in checked.colours) and not checked.solved
    assert checked.status == "not solved yet: knows looks at nothing that it is given"
    assert checked.why.startswith("right about ") and "by something else" in checked.why


def found(values):
    """Roles and names of variants that lie open in values, or in what a function among them holds."""
    for value in values:
        held = [cell.cell_contents for cell in getattr(value, "__closure__", None) or ()]
        held += getattr(value, "args", ())
        for each in (value, *held):
            yield str(getattr(each, "role", ""))
            yield str(getattr(getattr(each, "fn", each), "__name__", ""))
            yield str(getattr(each, "variant", ""))


def asks_its_callers(given):
    assert given.steps
    frame = sys._getframe(1)
    while frame:
        seen = set(found(frame.f_locals.values()))
        assert not seen & {"buggy", "tempting", "unrouted", "whole_graph", "downgraded"}
        frame = frame.f_back


def test_a_test_that_asks_its_callers_learns_nothing():
    checked = judged(asks_its_callers)
    assert {colour.is_red for colour in checked.colours} == {False} and not checked.solved


def opens_what_it_is_given(start):
    runner = start()
    inside = [*vars(start).values(), *vars(runner).values()]
    assert not set(found(inside)) & {"buggy", "unwritten"}


def test_a_test_that_opens_what_it_is_given_learns_nothing():
    checked = get("lora_device_assert").check_test(opens_what_it_is_given, rung="emulated")
    assert {colour.is_red for colour in checked.colours} == {False} and not checked.solved


def test_what_a_test_prints_is_shown_once_for_each_variant(capsys):
    get("lora_device_assert").check_test(lambda start: print("asked"), rung="emulated")
    assert capsys.readouterr().out == "asked\n" * 2


# ---- a crash that has to be brought about ----


def only_starts(start):
    start()


def in_loud_memory(start):
    with filled_memory():
        start()


def by_an_audit(start):
    def run():
        return start().hidden_states

    assert not audit_eager("start", run, backend="emulated").findings


def leaves_memory_loud(start):
    torch.use_deterministic_algorithms(True)
    start()


def catches(start):
    with filled_memory(), suppress(IndexError):
        start()


@pytest.mark.parametrize(
    ("test", "why"),
    [
        (only_starts, "green on unwritten: what it has started ran through. New memory holds zeros here"),
        (always_green, "green on unwritten, and it has looked at nothing of the run."),
        (catches, "green on unwritten: what it has started crashed, and it went on."),
        (in_loud_memory, ""),
        (leaves_memory_loud, ""),
        (by_an_audit, ""),
    ],
)
def test_a_start_is_red_where_the_test_sees_to_its_memory(test, why):
    checked = get("lora_device_assert").check_test(test, rung="emulated")
    assert checked.solved == (not why) and checked.why.startswith(why)
    assert not torch.are_deterministic_algorithms_enabled()


def test_a_variant_that_was_run_is_not_run_again_for_a_test():
    """Nor is it in a run of its own: that one is looked at from then on."""
    case, ran = get("breakable_graph"), []

    def counted(variant, rung, shape):
        ran.append(variant.name)
        return case.observe(variant, rung, shape)

    counting = replace(case, observe=counted)
    shape = {"rung": "emulated", **CASES["breakable_graph"]}
    assert counting.run("breakable", **shape).verdict == counting.run("breakable", **shape).verdict
    assert ran == ["breakable"] * 2
    for _ in range(2):
        checked = counting.check_test(right_and_replayed, **shape)
    assert checked.solved and set(ran[2:]) == {colour.variant for colour in checked.colours} - {"breakable"}
    assert len(ran[2:]) == len(checked.colours) - 1 > 0
