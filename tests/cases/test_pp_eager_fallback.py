"""The story of vLLM #35162: two stages that never replayed, a repair that is worse, and one that holds."""

import pytest
import torch

from mrv2lab.cases import get
from mrv2lab.cases.base import Variant, relative_errors
from mrv2lab.cases.pp_eager_fallback import (
    captured_addresses,
    copy_without_check,
    full_and_piecewise,
    full_graphs,
    make_runner,
    moving_buffers,
    persistent_buffers,
    reference,
    step_times_s,
    summary,
)
from mrv2lab.cases.workload import without_adapters
from mrv2lab.runner.pp_utils import PPGroup
from mrv2lab.runner.sequence import IntermediateTensors

CASE = get("pp_eager_fallback")


@pytest.fixture
def runs(run_once):
    return lambda variant, rung: run_once(CASE.name, variant, rung)


def test_the_fallback_is_right_in_every_step_and_replays_in_none(runs, backend):
    run = runs("eager_fallback", backend)
    assert run.max_error < 1e-5
    assert set(run.step_modes) == {"eager"}
    assert run.metrics["graphs_first_stage"] == run.metrics["graphs_last_stage"] == 0
    assert run.kernels == {}


def test_moving_buffers_replays_and_only_then_goes_wrong(runs, backend):
    run = runs("moving_buffers", backend)
    assert run.step_modes[0] == "eager" and run.errors[0] < 1e-5
    assert run.errors[run.step_modes.index("graph")] > 0.5
    assert run.metrics["replayed_steps_first_stage"] == run.metrics["replayed_steps_last_stage"] >= 8


@pytest.mark.parametrize(
    "variant, graphs_per_size",  # one layer a stage: a piece before its attention, and one behind
    [("persistent_buffers", 2), ("full_and_piecewise", 3), ("full_graphs", 1)],
)
def test_with_an_address_that_stays_both_stages_replay_and_are_right(runs, variant, graphs_per_size, backend):
    run = runs(variant, backend)
    assert run.max_error < 1e-5
    assert run.metrics["replayed_steps_first_stage"] == run.metrics["replayed_steps_last_stage"] >= 8
    assert run.metrics["graphs_first_stage"] == run.metrics["graphs_last_stage"] == 4 * graphs_per_size


@pytest.mark.gpu
def test_on_a_gpu_replaying_beats_the_fallback():
    fallback, fixed = (CASE.run(v, rung="cuda", num_layers=8) for v in ("eager_fallback", "full_graphs"))
    assert fixed.latency_ms.median < fallback.latency_ms.median
    assert fixed.metrics["requests_per_s"] > fallback.metrics["requests_per_s"]


def test_a_wrong_answer_has_no_speed_and_the_emulator_has_none_at_all(runs, backend):
    speeds = {"ttft_ms", "tpot_ms", "requests_per_s"}
    wrong, right = runs("moving_buffers", backend), runs("full_graphs", backend)
    assert wrong.latency_ms is None and not speeds & wrong.metrics.keys()
    assert (right.latency_ms is not None) == (speeds <= right.metrics.keys()) == (backend == "cuda")


def test_every_step_of_full_batches_is_timed():
    runner = make_runner(CASE.variant("eager"), "emulated", CASE.complete({}))
    batches = step_times_s(runner, batch_size=8, num_batches=2)
    assert [len(times) for times in batches] == [56]  # the batch before it warms up
    assert min(map(min, batches)) > 0


def test_speeds_are_computed_from_step_times():
    latency, speeds = summary([[0.010, 0.002, 0.004], [0.030, 0.002, 0.002]], batch_size=4)
    assert latency.median == pytest.approx(2) and latency.p20 == pytest.approx(2)
    assert latency.p80 == pytest.approx(2.8)
    assert speeds == pytest.approx({"ttft_ms": 20, "tpot_ms": 2.5, "requests_per_s": 8 / 0.050})


def test_a_fifth_of_the_steps_lies_below_the_band_and_a_fifth_above():
    latency, _ = summary([[0.100, *(n / 1e3 for n in (0, 1, 2, 3, 4, 5))]], batch_size=1)  # prefill, decodes
    assert (latency.p20, latency.median, latency.p80) == pytest.approx((1, 2.5, 4))


def test_the_workload_is_that_of_all_cases_without_adapters():
    assert {request.lora_id for request in without_adapters(CASE.complete({}))[0]} == {0}


# ---- what a graph of the last stage reads ----


def last_stage(capture_stage, backend):
    """A last stage that is ready, and the addresses in its graphs for four requests."""
    group = PPGroup(1, 2, "cuda" if backend == "cuda" else "cpu")
    stage = make_runner(Variant(capture_stage, "fixed", "correct"), backend, CASE.complete({}), group)
    stage.warm_up_and_capture()
    return stage, captured_addresses(stage, 4)


@pytest.mark.parametrize("variant", [persistent_buffers, full_and_piecewise, full_graphs])
def test_fixed_graphs_read_the_buffers_that_every_step_writes(variant, backend):
    stage, addresses = last_stage(variant, backend)
    assert {tensor.data_ptr() for _, tensor in stage.intermediate_tensors.items()} <= addresses
    assert {len(tensor) for _, tensor in stage.intermediate_tensors.items()} == {stage.config.max_num_tokens}


def test_moving_buffers_read_memory_that_nobody_writes_again(backend):
    stage, addresses = last_stage(moving_buffers, backend)
    assert stage.intermediate_tensors is None
    captured = next(inputs for inputs in stage.captured_inputs[::-1] if len(inputs["residual"]) == 4)
    assert {tensor.data_ptr() for _, tensor in captured.items()} <= addresses


# ---- keys ----


def forgets_residual(stage):
    """Both stages as they should be, except that the first one never sends the residual."""
    stage.output_intermediate_tensors.tensors.pop("residual")
    full_graphs(stage)


def forgets_residual_unchecked(stage):
    """The same, with the assertion that review asked for taken out."""
    stage.copy_received = copy_without_check
    forgets_residual(stage)


def test_a_missing_key_is_an_error_with_the_check_and_silence_without():
    checked = CASE.check(forgets_residual, rung="emulated").run
    assert checked.verdict == "failed"
    assert (
        "the previous stage sent ['hidden_states'], this one reads ['hidden_states', 'resid"
        in checked.message
    )
    silent = CASE.check(forgets_residual_unchecked, rung="emulated").run
    assert (silent.verdict, silent.message) == ("wrong", None)
    assert min(silent.errors) > 0.1  # in every step, eager ones too: the residual is the one of capture


def test_a_missing_key_leaves_the_rows_of_an_earlier_step():
    buffers = IntermediateTensors({"hidden_states": torch.ones(2, 1), "residual": torch.ones(2, 1)})
    copy_without_check(buffers, IntermediateTensors({"hidden_states": torch.full((2, 1), 2.0)}))
    assert (buffers["hidden_states"] + buffers["residual"]).tolist() == [[3], [3]]  # of two steps, of neither


# ---- a reader's own ----


def too_small(stage):
    """Buffers for the largest graph: a prompt that is run eagerly may be longer."""
    if not stage.pp_group.is_first_rank:
        stage.intermediate_tensors = stage.make_empty_intermediate_tensors(8)
    stage.capture_model()


def last_stage_only(stage):
    """Half of the repair: the first stage stays eager."""
    if stage.pp_group.is_last_rank:
        full_graphs(stage)


def raises(stage):
    stage.no_such_method()


@pytest.mark.parametrize(
    ("fn", "verdict", "message"),
    [
        (too_small, "failed", "The size of tensor"),
        (last_stage_only, "eager", None),
        (raises, "failed", "'ModelRunner' object has no attribute 'no_such_method'"),
    ],
    ids=["too small", "last stage only", "raises"],
)
def test_a_function_of_the_readers_own_gets_a_verdict_and_a_sentence(fn, verdict, message):
    run = CASE.check(fn, rung="emulated", batch_size=2, num_steps=9).run
    assert run.verdict == verdict
    assert (message or "") in (run.message or "")


def test_the_diffs_are_the_lesson():
    struck_out = CASE.diff("eager_fallback", "moving_buffers").lines
    assert [line for line in struck_out if line.startswith("-") and "return" in line]
    added = [line for line in CASE.diff("moving_buffers", "full_graphs").lines if line.startswith("+")]
    assert any(
        "stage.intermediate_tensors = stage.make_empty_intermediate_tensors(" in line for line in added
    )


def test_the_reference_is_one_process_with_the_whole_model():
    shape = CASE.complete({})
    steps = reference("emulated", *shape.items())
    assert {step.num_replays for step in steps} == {0}
    assert relative_errors(steps, reference("emulated", *shape.items())) == [0.0] * len(steps)
