"""One kernel writes the even, another the odd half of an empty output; both are needed and both run."""

import torch
import triton.language as tl

from mrv2lab import graphs
from mrv2lab.kernels.dual import DualKernel

DEVICE = graphs.device_of("auto")

EXPECT = []
SUBJECTS = []


@DualKernel
def half_kernel(x_ptr, o_ptr, parity, gain, BLOCK: tl.constexpr):
    i = 2 * tl.arange(0, BLOCK) + parity
    tl.store(o_ptr + i, tl.load(x_ptr + i) * gain)


class Interleaved:
    def __init__(self):
        torch.manual_seed(0)
        self.x = torch.randn(16, device=DEVICE)

    def run(self):
        out = torch.empty(16, device=DEVICE)
        for parity, gain in ((0, 2.0), (1, -1.0)):
            half_kernel[(1,)](self.x, out, parity, gain, BLOCK=8)
        return out.cumsum(0)


def make():
    layer = Interleaved()
    return {"step": layer.run, "vary": lambda: layer.x.add_(0.5), "reset": None}
