"""The optional pointer is None at capture; a bias is loaded later."""

import torch
import triton.language as tl

from mrv2lab import graphs
from mrv2lab.kernels.dual import DualKernel

DEVICE = graphs.device_of("auto")

EXPECT = ["frozen-host-value", "moved-address"]
SUBJECTS = ["bias"]


@DualKernel
def affine_kernel(x_ptr, b_ptr, o_ptr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    v = tl.load(x_ptr + i)
    if b_ptr is not None:
        v += tl.load(b_ptr + i)
    tl.store(o_ptr + i, v)


class Affine:
    def __init__(self):
        torch.manual_seed(0)
        self.x, self.out = torch.randn(8, device=DEVICE), torch.zeros(8, device=DEVICE)
        self.bias = None

    def __call__(self):
        affine_kernel[(1,)](self.x, self.bias, self.out, BLOCK=8)  # HERE
        return self.out


def make():
    layer = Affine()

    def vary():
        layer.bias = torch.full((8,), 2.0, device=DEVICE)

    return {"step": layer, "vary": vary, "reset": None}
