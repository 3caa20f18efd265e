"""Attention by a plan that is made ahead of time: right for its own batch, out of bounds for another's."""

import pytest
import torch

from mrv2lab.errors import IllegalAccess
from mrv2lab.kernels.flash_attn import (
    MAX_NUM_SPLITS,
    flash_attn_with_kvcache,
    get_scheduler_metadata,
    metadata_size,
    round_up,
)
from mrv2lab.kernels.flash_mla import flash_mla_reference

LATENT, ROPE, PAGE, MAX_PAGES, HEADS, SCALE = 32, 16, 16, 6, 4, 0.2


class Problem:
    """Requests of these lengths, one query each, over pages in random order."""

    def __init__(self, device, lengths, heads=HEADS):
        batch = len(lengths)
        self.q = torch.randn(batch, heads, LATENT + ROPE, device=device)
        self.k_cache = torch.randn(batch * MAX_PAGES + 1, PAGE, LATENT + ROPE, device=device)
        pages = 1 + torch.randperm(batch * MAX_PAGES).view(batch, MAX_PAGES)
        self.block_table = pages.to(device, torch.int32)
        self.seq_lens = torch.tensor(lengths, dtype=torch.int32, device=device)

    def plan(self):
        return get_scheduler_metadata(self.seq_lens, PAGE)

    def run(self, plan):
        inputs = (self.q, self.k_cache, self.block_table, self.seq_lens, LATENT)
        return flash_attn_with_kvcache(*inputs, plan, SCALE)

    def error(self, out):
        reference = flash_mla_reference(self.q, self.k_cache, self.block_table, self.seq_lens, LATENT, SCALE)
        return ((out - reference).norm() / reference.norm().clamp_min(1e-30)).item()


@pytest.mark.parametrize(
    "lengths", [[1, 1, 1, 1], [5, 17, 33, 90], [96] * 5, [0, 3, 0, 50], [77], [1] * 8], ids=str
)
def test_attention_by_its_own_plan_matches_float64(device, lengths):
    problem = Problem(device, lengths)
    assert problem.error(problem.run(problem.plan())) < 1e-5


def test_padding_rows_get_zero(device):
    problem = Problem(device, [0, 0, 0])
    assert problem.run(problem.plan()).eq(0).all()


@pytest.mark.parametrize("lengths", [[96], [5, 17, 33, 90], [1] * 8, [0, 0, 16, 17, 0]], ids=str)
def test_a_plan_covers_every_page_and_no_request_has_too_many_splits(lengths):
    plan = get_scheduler_metadata(torch.tensor(lengths, dtype=torch.int32), PAGE)
    stride = round_up(len(lengths))
    work = plan[stride : stride + len(lengths)]
    assert len(plan) == metadata_size(len(lengths)) == 2 * stride
    assert sorted((work & 0xFFFF).tolist()) == list(range(len(lengths)))  # each request once
    for length, num_splits in zip(lengths, plan.tolist(), strict=False):
        assert num_splits <= MAX_NUM_SPLITS
        assert num_splits * (work[0] >> 16) * PAGE >= length


def test_where_a_number_lies_depends_on_the_batch_size_and_a_stale_plan_leads_out_of_bounds():
    problem, buffer = Problem("cpu", [1] * 8), torch.zeros(metadata_size(8), dtype=torch.int32)
    of_one = get_scheduler_metadata(problem.seq_lens[:1], PAGE)
    buffer[: len(of_one)] = of_one
    assert buffer[:8].tolist() == [1, 0, 0, 0, 1 << 16, 0, 0, 0]  # as counts of splits
    with pytest.raises(IllegalAccess, match="flash_fwd_combine_kernel reads"):
        problem.run(buffer)
