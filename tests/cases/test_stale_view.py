"""The story of vLLM #47561 and #48261: metadata that was kept shows another batch's plan."""

import pytest
import torch

from mrv2lab.cases import get
from mrv2lab.cases.flashmla_lazy_init import drafting, fresh_always, state_pair
from mrv2lab.cases.stale_view import make_runner
from mrv2lab.runner import ModelRunner

CASE = get("stale_view")


@pytest.fixture
def runs(run_once):
    return lambda variant, rung: run_once(CASE.name, variant, rung)


@pytest.mark.parametrize("variant", ["one_state", "kept_pairs", "zeroed_buffers"])
def test_the_speculators_first_warm_up_reads_out_of_bounds(variant, runs, backend):
    run = runs(variant, backend)
    assert run.verdict == "crash" and run.as_expected, run.message
    assert run.errors == [] and run.latency_ms is None


def test_copies_go_through_start_up_and_are_wrong_in_every_replay(runs, backend):
    run = runs("own_copies", backend)
    assert run.verdict == "wrong" and run.message is None
    for error, mode in zip(run.errors, run.step_modes, strict=True):
        assert (error > 0.1) == (mode == "graph")


def seen_in_warm_ups(runner):
    """For each eager pass of the draft during capture: its size, and the lengths that stand in the buffer."""
    seen, prefill = [], runner.speculator._prefill
    manager = runner.speculator.prefill_cudagraph_manager

    def noted(num_tokens, attn_metadata, cg_mode):
        if num_tokens not in {size for size, _ in seen}:  # the warm-up comes before the capture
            seen.append((num_tokens, attn_metadata.seq_lens.tolist()))
        prefill(num_tokens, attn_metadata, cg_mode)

    runner.speculator._prefill = noted
    runner.warm_up_and_capture()
    assert len(manager.graphs) == len(seen)
    return seen


SIZES = (8, 4, 2, 1)


def test_what_is_kept_shows_the_targets_last_size_and_what_is_built_anew_its_own():
    """With FlashMLA, whose kernels can plan for any lengths: so nothing crashes, and all can be seen."""
    config = drafting(CASE.variant("fresh_inputs"), CASE.complete({}))
    stale = seen_in_warm_ups(ModelRunner(config, "emulated", attention_states=state_pair))
    assert stale == [(size, [1] + [0] * (size - 1)) for size in SIZES]
    fresh = seen_in_warm_ups(ModelRunner(config, "emulated", attention_states=fresh_always))
    assert fresh == [(size, [1] * size) for size in SIZES]
    assert seen_in_warm_ups(ModelRunner(config, "emulated")) == fresh  # the runner's own way


def test_graphs_of_the_fixed_speculator_follow_the_plan_at_the_builders_address():
    runner = make_runner(CASE.variant("fresh_inputs"), "emulated", CASE.complete({}))
    runner.warm_up_and_capture()
    plan = runner.metadata_builder.scheduler_metadata.data_ptr()
    graphs = runner.speculator.prefill_cudagraph_manager.graphs.values()
    assert all(any(plan in node.addresses for node in graph.nodes) for graph in graphs)


def test_a_builder_has_one_buffer_for_all_sizes():
    builder = make_runner(CASE.variant("eager"), "emulated", CASE.complete({})).metadata_builder
    for_eight = builder.build(torch.ones(8, dtype=torch.int32))
    before = for_eight.clone()
    for_one = builder.build(torch.ones(1, dtype=torch.int32))
    assert for_one.data_ptr() == for_eight.data_ptr() and not torch.equal(for_eight, before)
    assert not for_eight[len(for_one) :].any()
