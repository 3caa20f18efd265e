"""Atomic adds into an empty buffer that another kernel of the step has cleared."""

import torch
import triton.language as tl

from mrv2lab import graphs
from mrv2lab.kernels.dual import DualKernel

DEVICE = graphs.device_of("auto")

EXPECT = []
SUBJECTS = []


@DualKernel
def clear_kernel(o_ptr, BLOCK: tl.constexpr):
    tl.store(o_ptr + tl.arange(0, BLOCK), tl.full((BLOCK,), 0, tl.int32))


@DualKernel
def histogram_kernel(ids_ptr, counts_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    ok = i < n
    bins = tl.load(ids_ptr + i, mask=ok, other=0)
    tl.atomic_add(counts_ptr + bins, tl.full((BLOCK,), 1, tl.int32), mask=ok)


def make():
    torch.manual_seed(0)
    ids = torch.randint(0, 4, (12,), device=DEVICE)

    def step():
        counts = torch.empty(4, dtype=torch.int32, device=DEVICE)
        clear_kernel[(1,)](counts, BLOCK=4)
        histogram_kernel[(3,)](ids, counts, 12, BLOCK=4)
        return counts.float() / 12

    return {"step": step, "vary": lambda: ids.copy_((ids * 2 + 1) % 4), "reset": None}
