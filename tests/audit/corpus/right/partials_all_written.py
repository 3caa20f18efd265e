"""A two-stage reduction over an empty workspace in which every split writes, if only a zero."""

import torch
import triton.language as tl

from mrv2lab import graphs
from mrv2lab.kernels.dual import DualKernel

DEVICE = graphs.device_of("auto")

EXPECT = []
SUBJECTS = []


@DualKernel
def partial_kernel(x_ptr, len_ptr, part_ptr, CHUNK: tl.constexpr):
    pid = tl.program_id(0)
    i = pid * CHUNK + tl.arange(0, CHUNK)
    tl.store(part_ptr + pid, tl.sum(tl.load(x_ptr + i, mask=i < tl.load(len_ptr), other=0.0), axis=0))


@DualKernel
def reduce_kernel(part_ptr, o_ptr, SPLITS: tl.constexpr):
    tl.store(o_ptr, tl.sum(tl.load(part_ptr + tl.arange(0, SPLITS)), axis=0))


def make():
    torch.manual_seed(0)
    x, n = torch.randn(32, device=DEVICE), torch.tensor([10], dtype=torch.int32, device=DEVICE)

    def step():
        partials, out = torch.empty(4, device=DEVICE), torch.empty(1, device=DEVICE)
        partial_kernel[(4,)](x, n, partials, CHUNK=8)
        reduce_kernel[(1,)](partials, out, SPLITS=4)
        return out

    return {"step": step, "vary": lambda: n.add_(5), "reset": None}
