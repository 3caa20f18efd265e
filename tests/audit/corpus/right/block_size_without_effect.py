"""The block size follows the batch, and with it the grid; both cover the whole buffer, so the result is
the same.
"""

import torch
import triton
import triton.language as tl

from mrv2lab import graphs
from mrv2lab.kernels.dual import DualKernel

DEVICE = graphs.device_of("auto")

EXPECT = []
SUBJECTS = []


@DualKernel
def gelu_like_kernel(x_ptr, o_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    ok = i < n
    v = tl.load(x_ptr + i, mask=ok, other=0.0)
    tl.store(o_ptr + i, v / (1.0 + tl.exp(-1.702 * v)), mask=ok)


class Sized:
    def __init__(self):
        torch.manual_seed(0)
        self.x, self.rows = torch.randn(40, device=DEVICE), 3

    def block(self):
        return 16 if self.rows > 4 else 8

    def forward(self):
        out = torch.empty_like(self.x)
        grid = lambda meta: (triton.cdiv(self.x.numel(), meta["BLOCK"]),)
        gelu_like_kernel[grid](self.x, out, self.x.numel(), BLOCK=self.block())
        return out


def make():
    layer = Sized()

    def vary():
        layer.rows = 8 - layer.rows
        layer.x.mul_(0.9)

    return {"step": layer.forward, "vary": vary, "reset": None}
