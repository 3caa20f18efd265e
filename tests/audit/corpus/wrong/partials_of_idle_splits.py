"""The second stage of a reduction sums the partials of splits that had no work and wrote nothing."""

import torch
import triton.language as tl

from mrv2lab import graphs
from mrv2lab.kernels.dual import DualKernel

DEVICE = graphs.device_of("auto")

EXPECT = ["unwritten-read"]
SUBJECTS = ["partial", "empty", "reduce_kernel"]


@DualKernel
def partial_kernel(x_ptr, len_ptr, part_ptr, CHUNK: tl.constexpr):
    pid = tl.program_id(0)
    n = tl.load(len_ptr)
    if pid * CHUNK >= n:
        return
    i = pid * CHUNK + tl.arange(0, CHUNK)
    tl.store(part_ptr + pid, tl.sum(tl.load(x_ptr + i, mask=i < n, other=0.0), axis=0))


@DualKernel
def reduce_kernel(part_ptr, o_ptr, SPLITS: tl.constexpr):
    tl.store(o_ptr, tl.sum(tl.load(part_ptr + tl.arange(0, SPLITS)), axis=0))


def make():
    torch.manual_seed(0)
    x, n = torch.randn(32, device=DEVICE), torch.tensor([10], dtype=torch.int32, device=DEVICE)
    out = torch.zeros(1, device=DEVICE)

    def step():
        partials = torch.empty(4, device=DEVICE)  # HERE
        partial_kernel[(4,)](x, n, partials, CHUNK=8)
        reduce_kernel[(1,)](partials, out, SPLITS=4)  # HERE
        return out

    return {"step": step, "vary": lambda: x.mul_(1.5), "reset": None}
