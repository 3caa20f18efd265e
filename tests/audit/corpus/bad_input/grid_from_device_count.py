"""The grid of a Triton kernel comes from a device counter by .item()."""

import torch
import triton.language as tl

from mrv2lab import graphs
from mrv2lab.kernels.dual import DualKernel

DEVICE = graphs.device_of("auto")

EXPECT = ["host-sync"]
SUBJECTS = ["item", "count", "_local_scalar_dense"]


@DualKernel
def copy_kernel(x_ptr, o_ptr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(o_ptr + i, tl.load(x_ptr + i))


def make():
    x, out = torch.arange(32.0, device=DEVICE), torch.zeros(32, device=DEVICE)
    count = torch.tensor([2], device=DEVICE)

    def step():
        out.zero_()
        copy_kernel[(count.item(),)](x, out, BLOCK=4)  # HERE
        return out

    return {"step": step, "vary": lambda: count.add_(1), "reset": None}
