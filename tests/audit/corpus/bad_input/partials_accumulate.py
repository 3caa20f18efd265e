"""Every step appends a partial buffer and reduces over all of them."""

import torch
import triton.language as tl

from mrv2lab import graphs
from mrv2lab.kernels.dual import DualKernel

DEVICE = graphs.device_of("auto")

EXPECT = ["AuditError"]
SUBJECTS = ["parts", "grow", "repeat", "differ", "append"]


@DualKernel
def square_sum_kernel(x_ptr, o_ptr, BLOCK: tl.constexpr):
    v = tl.load(x_ptr + tl.arange(0, BLOCK))
    tl.store(o_ptr, tl.sum(v * v, axis=0))


class Accumulating:
    def __init__(self):
        torch.manual_seed(0)
        self.x, self.parts = torch.randn(8, device=DEVICE), []

    def step(self):
        part = torch.zeros(1, device=DEVICE)
        square_sum_kernel[(1,)](self.x, part, BLOCK=8)
        self.parts.append(part)  # HERE
        return torch.cat(self.parts).sum()  # HERE


def make():
    layer = Accumulating()
    return {"step": layer.step, "vary": lambda: layer.x.add_(1), "reset": None}
