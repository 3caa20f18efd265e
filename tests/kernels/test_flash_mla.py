"""Split-KV decode attention against float64, and what its lazily made plan does to a graph."""

import pytest
import torch

from mrv2lab.errors import IllegalAccess
from mrv2lab.graphs import capture
from mrv2lab.kernels.flash_mla import (
    FlashMLASchedMeta,
    flash_mla_reference,
    flash_mla_with_kvcache,
)

BATCH, HEADS, LATENT, ROPE, PAGE, MAX_PAGES = 4, 4, 32, 16, 16, 6
SCALE = 0.2


class Problem:
    """Random queries and pages; lengths can be rewritten in place."""

    def __init__(self, device, lengths, batch=BATCH, heads=HEADS):
        self.q = torch.randn(batch, heads, LATENT + ROPE, device=device)
        self.k_cache = torch.randn(batch * MAX_PAGES + 1, PAGE, LATENT + ROPE, device=device)
        pages = 1 + torch.randperm(batch * MAX_PAGES).view(batch, MAX_PAGES)
        self.block_table = pages.to(device, torch.int32)
        self.cache_seqlens = torch.zeros(batch, dtype=torch.int32, device=device)
        self.set_lengths(lengths)

    def set_lengths(self, lengths):
        self.cache_seqlens.copy_(torch.tensor(lengths))

    def run(self, sched_meta):
        inputs = (self.q, self.k_cache, self.block_table, self.cache_seqlens, LATENT)
        return flash_mla_with_kvcache(*inputs, sched_meta, SCALE)

    def error(self, out):
        inputs = (self.q, self.k_cache, self.block_table, self.cache_seqlens, LATENT)
        reference = flash_mla_reference(*inputs, SCALE)
        return ((out - reference).norm() / reference.norm().clamp_min(1e-30)).item()


LENGTHS = [[1, 1, 1, 1], [5, 17, 33, 90], [96, 96, 96, 96], [0, 3, 0, 50], [16, 32, 48, 64]]


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_attention_matches_float64(device, lengths):
    problem = Problem(device, lengths)
    assert problem.error(problem.run(FlashMLASchedMeta())) < 1e-5


def test_padding_rows_get_zero(device):
    problem = Problem(device, [0, 0, 0, 0])
    assert problem.run(FlashMLASchedMeta()).eq(0).all()


def test_one_request_with_many_heads(device):
    problem = Problem(device, [77], batch=1, heads=20)
    assert problem.error(problem.run(FlashMLASchedMeta())) < 1e-5


def test_the_plan_covers_every_page_once_and_shares_them_out(device):
    problem, plan = Problem(device, [5, 17, 33, 90]), FlashMLASchedMeta()
    problem.run(plan)
    pages = [1, 2, 3, 6]
    covered = []
    for first, first_page, last, end_page, _ in plan.tile_scheduler_metadata.tolist():
        for request in range(first, last + 1):
            start = first_page if request == first else 0
            stop = end_page if request == last else pages[request]
            covered += [(request, page) for page in range(start, stop)]
    assert covered == [(request, page) for request, n in enumerate(pages) for page in range(n)]
    assert plan.num_splits.tolist() == [0, 1, 2, 3, 5]


PLANNER = "get_mla_metadata_kernel"
OTHERS = {"flash_fwd_splitkv_mla_kernel": 1, "flash_fwd_mla_combine_kernel": 1}


def our_kernels(graph):
    return {name: n for name, n in graph.kernels().items() if "mla" in name}


def test_a_fresh_plan_is_captured_with_its_planner_and_right_for_any_lengths(backend, device):
    problem = Problem(device, [1, 1, 1, 1])
    problem.run(FlashMLASchedMeta())
    plan = FlashMLASchedMeta()
    graph = capture(lambda: problem.run(plan), backend=backend)
    assert our_kernels(graph) == {PLANNER: 1, **OTHERS}
    for lengths in LENGTHS:
        problem.set_lengths(lengths)
        graph.replay()
        assert problem.error(graph.outputs) < 1e-5


def test_a_plan_from_the_warm_up_is_captured_without_its_planner_and_goes_stale(backend, device):
    problem, plan = Problem(device, [1, 1, 1, 1]), FlashMLASchedMeta()
    problem.run(plan)
    graph = capture(lambda: problem.run(plan), backend=backend)
    assert our_kernels(graph) == OTHERS
    errors = {}
    for lengths in ([1, 1, 1, 1], [16, 9, 2, 1], [5, 17, 33, 90]):
        problem.set_lengths(lengths)
        graph.replay()
        errors[tuple(lengths)] = problem.error(graph.outputs)
    same, one_page, changed = errors.values()
    assert same < 1e-5
    assert one_page < 1e-5  # still one page each: why a test with short prompts passes
    assert changed > 0.1


@pytest.mark.parametrize(
    ("taken_back", "is_planned"), [("have_initialized", False), ("tile_scheduler_metadata", True)]
)
def test_the_tensor_decides_and_the_flag_only_moves_with_it(taken_back, is_planned, backend, device):
    problem, plan = Problem(device, [1, 1, 1, 1]), FlashMLASchedMeta()
    problem.run(plan)
    assert plan.have_initialized and plan.tile_scheduler_metadata is not None
    setattr(plan, taken_back, getattr(FlashMLASchedMeta(), taken_back))
    graph = capture(lambda: problem.run(plan), backend=backend)
    assert ("get_mla_metadata_kernel" in our_kernels(graph)) == is_planned
    problem.set_lengths([5, 17, 33, 90])
    graph.replay()
    assert (problem.error(graph.outputs) < 1e-5) == is_planned


def test_metadata_that_has_served_other_sizes_is_refused():
    plan = FlashMLASchedMeta()
    Problem("cpu", [1, 1], batch=2).run(plan)
    with pytest.raises(AssertionError, match=r"is for \(2, .* this call is \(4, "):
        Problem("cpu", [1, 1, 1, 1]).run(plan)


def test_a_captured_plan_was_never_made_and_the_next_eager_call_reads_it():
    problem, plan = Problem("cpu", [5, 17, 33, 90]), FlashMLASchedMeta()
    graph = capture(lambda: problem.run(plan), backend="emulated")
    assert plan.tile_scheduler_metadata is not None
    with pytest.raises(IllegalAccess, match="illegal memory access"):
        problem.run(plan)
    graph.replay()  # runs the planner, and now the plan is there
    assert problem.error(problem.run(plan)) < 1e-5
