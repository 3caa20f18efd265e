"""Interpreted kernels may only touch the tensors they are given."""

import pytest
import torch
import triton.language as tl

from mrv2lab.errors import IllegalAccess
from mrv2lab.graphs import capture
from mrv2lab.kernels.dual import DualKernel


@DualKernel
def shift_kernel(x_ptr, y_ptr, read_at, write_at):
    tl.store(y_ptr + write_at + tl.arange(0, 4), tl.load(x_ptr + read_at + tl.arange(0, 4)))


@DualKernel
def masked_kernel(x_ptr, y_ptr, n):
    at = tl.arange(0, 8)
    tl.store(y_ptr + at, tl.load(x_ptr + at, mask=at < n, other=0.0), mask=at < n)


def test_accesses_inside_pass():
    x, y = torch.arange(8.0), torch.zeros(4)
    shift_kernel[1,](x, y, 4, 0)
    assert y.tolist() == [4, 5, 6, 7]


@pytest.mark.parametrize(
    ("read_at", "write_at", "words"),
    [(5, 0, "reads 1 address outside"), (0, -2, "writes 2 addresses"), (1 << 40, 0, "reads 4")],
)
def test_accesses_outside_are_refused_before_they_happen(read_at, write_at, words):
    x, y = torch.arange(8.0), torch.zeros(4)
    with pytest.raises(IllegalAccess, match=f"illegal memory access was encountered: shift_kernel {words}"):
        shift_kernel[1,](x, y, read_at, write_at)
    assert y.tolist() == [0, 0, 0, 0]


def test_an_access_may_not_begin_inside_and_end_outside():
    x, y = torch.zeros(18, dtype=torch.uint8)[:16].view(torch.int32), torch.zeros(8, dtype=torch.int32)
    with pytest.raises(IllegalAccess, match="shift_kernel reads 1 address outside"):
        shift_kernel[1,](x, y, 1, 0)  # the last of four elements: two of its bytes are nobody's


def test_masked_lanes_may_point_anywhere():
    x, y = torch.ones(3), torch.zeros(3)
    masked_kernel[1,](x, y, 3)
    assert y.tolist() == [1, 1, 1]


def test_a_replay_is_protected_too_and_the_next_one_works():
    x, y, at = torch.arange(8.0), torch.zeros(4), [5]
    graph = capture(lambda: shift_kernel[1,](x, y, at[0], 0), backend="emulated")
    with pytest.raises(IllegalAccess):
        graph.replay()
    shift_kernel[1,](x, y, 0, 0)
    assert y.tolist() == [0, 1, 2, 3]
