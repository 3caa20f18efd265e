"""What the speculator is shown while graphs are captured, on a runner that only counts: no vLLM, no GPU."""

import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch

from mrv2lab.live import stale_view

KV_HEADS, QUERIES_PER_KV_HEAD = 4, 2  # of `make_qwen3`
NUM_TOKENS = 2  # of a request in a decode


@pytest.fixture
def plans(monkeypatch):
    """What was left behind before each plan was made."""
    left: list[int | None] = []
    backends = ModuleType("vllm.v1.attention.backends")
    backends.flash_attn = SimpleNamespace(get_scheduler_metadata=lambda: left.append(None))
    monkeypatch.setitem(sys.modules, backends.__name__, backends)
    monkeypatch.setattr(stale_view, "leave_behind", left.append)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    backends.flash_attn.left = left
    return backends.flash_attn


def shown(*lengths):
    return {"layer": SimpleNamespace(seq_lens=torch.tensor(lengths))}


@pytest.mark.parametrize("left_over", [stale_view.LEFT_OVER, None])
def test_a_warm_up_by_another_batchs_lengths_is_noted_and_what_plans_are_made_in_is_filled(plans, left_over):
    ran, warmups = [], []
    runner = SimpleNamespace(speculator=SimpleNamespace(_prefill=lambda *args: ran.append(args[:2])))

    def capture_model(self):
        plans.get_scheduler_metadata()
        self.speculator._prefill(4, 8, shown(2, 0, 0, 0))
        self.speculator._prefill(4, 8, shown(2, 2, 2, 2))
        self.speculator._prefill(2, 4, shown(2, 2))
        return 3

    capture = stale_view.watched(capture_model, warmups=warmups, left_over=left_over)
    assert capture(runner) == 3
    assert warmups == [True, False, False] and ran == [(4, 8), (4, 8), (2, 4)]
    plans.get_scheduler_metadata()  # afterwards nobody stands in between
    assert plans.left == ([left_over] if left_over else []) + [None, None]


def test_what_is_left_behind_is_in_the_memory_that_is_given_out_next(monkeypatch):
    filled = []
    monkeypatch.setattr(torch.Tensor, "fill_", lambda self, number: filled.append((self.numel(), number)))
    stale_view.leave_behind(7, device="cpu")
    assert set(filled) == {(128, 7)} and len(filled) * 128 * 4 == 2 << 20


def int32(number):
    return (number + (1 << 31)) % (1 << 32) - (1 << 31)


def quotient(a, b):
    """As C++: towards zero."""
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def first_rows(plan, block_m, num_blocks=132):
    """The row at which each block of FlashAttention 3 begins to write, for 4 requests by this plan.

    In our words what `tile_idx_to_work_tile` does (hopper/tile_scheduler.hpp, split and prepared). The plan
    is the lengths of 4 queries, then how many splits each has.
    """
    m_blocks = [quotient(int32(length + block_m - 1), block_m) for length in plan[:4]]
    ends = [int32(sum(m_blocks[i] * plan[4 + i] for i in range(n))) for n in (1, 2, 3, 4)]
    rows = []
    for block in range(num_blocks):
        request = sum(int32(end * KV_HEADS) <= block for end in ends)
        if int32(ends[-1] * KV_HEADS) > block and request < 4:
            start = int32(ends[request - 1] * KV_HEADS) if request else 0
            within = int32(block - start)
            head = quotient(within, m_blocks[request])
            rows.append(int32((m_blocks[request] - 1 - (within - head * m_blocks[request])) * block_m))
    return rows


@pytest.mark.parametrize("block_m", [64, 128, 192])  # hopper/tile_size.h, heads of 64
def test_four_requests_by_the_plan_of_one_write_gigabytes_from_any_tensor(block_m):
    length, other = NUM_TOKENS * QUERIES_PER_KV_HEAD, stale_view.LEFT_OVER
    own = first_rows([length] * 4 + [1] * 4, block_m)
    assert own == [0] * (4 * KV_HEADS)
    stale = first_rows([length, *[other] * 3, 1, *[other] * 3], block_m)
    assert len(stale) == 132
    # A negative row divided by heads, both without a sign: numbers of 4 bytes behind the buffer.
    assert all(row < 0 and (row % (1 << 32)) // QUERIES_PER_KV_HEAD * 4 > 4 << 30 for row in stale)
