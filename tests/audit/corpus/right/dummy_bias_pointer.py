"""The kernel gets some pointer for a bias that HAS_BIAS switches off; that tensor is another one each
time.
"""

import torch
import triton.language as tl

from mrv2lab import graphs
from mrv2lab.kernels.dual import DualKernel

DEVICE = graphs.device_of("auto")

EXPECT = []
SUBJECTS = []


@DualKernel
def affine_kernel(x_ptr, b_ptr, o_ptr, HAS_BIAS: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    v = tl.load(x_ptr + i) * 2.0
    if HAS_BIAS:
        v += tl.load(b_ptr + i)
    tl.store(o_ptr + i, v)


class Affine:
    def __init__(self):
        torch.manual_seed(0)
        self.x, self.out = torch.randn(8, device=DEVICE), torch.zeros(8, device=DEVICE)
        self.dummy, self.bias = torch.zeros(1, device=DEVICE), None

    def __call__(self):
        b = self.dummy if self.bias is None else self.bias
        affine_kernel[(1,)](self.x, b, self.out, HAS_BIAS=self.bias is not None, BLOCK=8)
        return self.out


def make():
    layer = Affine()

    def vary():
        layer.dummy = torch.full((1,), 9.0, device=DEVICE)
        layer.x.add_(1)

    return {"step": layer, "vary": vary, "reset": None}
