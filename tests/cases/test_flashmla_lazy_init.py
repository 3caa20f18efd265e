"""The story of vLLM #42444 and #44253: a plan made in the wrong pass."""

from dataclasses import replace

import pytest

from mrv2lab.cases import Variant, get
from mrv2lab.cases.flashmla_lazy_init import (
    captured_reused,
    errors_by_length,
    fresh_always,
    make_runner,
    shared_state,
    state_pair,
)
from mrv2lab.runner import AttentionStatePair

CASE = get("flashmla_lazy_init")
PLANNER = "get_mla_metadata_kernel"


@pytest.fixture
def runs(run_once):
    return lambda variant, rung: run_once(CASE.name, variant, rung)


def test_the_planner_is_in_the_fixed_graphs_and_missing_in_the_shared_one(runs, backend):
    assert PLANNER not in runs("shared_state", backend).kernels
    for fixed in ("state_pair", "fresh_always"):
        assert runs(fixed, backend).kernels[PLANNER] == 1


def test_a_shared_plan_is_right_until_a_request_needs_a_second_page(runs, backend):
    run = runs("shared_state", backend)
    first_wrong = next(i for i, error in enumerate(run.errors) if error > 1e-3)
    replayed_before = [i for i in range(first_wrong) if run.step_modes[i] == "graph"]
    assert len(replayed_before) >= 5  # all of them right, and all of them with a stale plan
    assert run.max_error > 0.1 and run.message is None


def test_captured_metadata_ends_the_speculators_warm_up(runs, backend):
    run = runs("captured_reused", backend)
    assert run.verdict == "crash" and run.as_expected, run.message
    assert run.errors == [] and run.latency_ms is None


def flags(attention_states):
    """`have_initialized` of what each pass of the largest size was given, when all is done."""
    variant, sizes = Variant(attention_states, "fixed", "correct"), (1, 2)
    runner = make_runner(variant, "emulated", CASE.complete({}), cudagraph_capture_sizes=sizes)
    runner.warm_up_and_capture()
    pair = next(iter(runner.attn_states.values()))
    speculator = next(iter(runner.speculator.prefill_cudagraph_manager.graphs.values()))
    return pair, speculator


def test_a_pair_lets_target_and_speculator_share_one_planner():
    pair, speculator = flags(state_pair)
    assert pair.warmup is not pair.captured
    assert PLANNER not in speculator.kernels()  # the target's graph runs first, and plans for both
    pair, speculator = flags(fresh_always)
    assert speculator.kernels()[PLANNER] == 1


def test_lengths_decide_whether_a_stale_plan_shows(backend):
    stale, right = errors_by_length(shared_state, backend), errors_by_length(state_pair, backend)
    assert stale["as captured"] < 1e-5 and stale["same pages"] < 1e-5
    assert stale["one more page"] > 0.05
    assert stale["all different"] > 0.1 and stale["longest"] > 0.1
    assert max(right.values()) < 1e-5
    assert max(errors_by_length(captured_reused, backend).values()) < 1e-5  # it is the speculator's bug


def two_warm_ups(build):
    """A repair one might try: warm up twice."""
    state = build()
    build()
    return AttentionStatePair(state, state), AttentionStatePair(state, state)


def no_pair(build):
    """A repair with a slip: it forgets the speculator."""
    return AttentionStatePair(build(), build())


@pytest.mark.parametrize(
    ("fn", "verdict", "word"),
    [(fresh_always, "correct", None), (two_warm_ups, "wrong", None), (no_pair, "failed", "Error")],
)
@pytest.mark.usefixtures("few_sizes")
def test_check_judges_a_function_of_the_readers_own(fn, verdict, word):
    at_its_own_shape = replace(CASE, exercise=replace(CASE.exercise, harder=()))
    run = at_its_own_shape.check(fn, batch_size=2).run
    assert (run.verdict, run.role, run.rung) == (verdict, None, "emulated")
    assert word is None or word in run.message
