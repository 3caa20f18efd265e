"""The backend's name changes, and both names stand for the same kernel."""

import torch
import triton.language as tl

from mrv2lab import graphs
from mrv2lab.kernels.dual import DualKernel

DEVICE = graphs.device_of("auto")

EXPECT = []
SUBJECTS = []


@DualKernel
def silu_kernel(x_ptr, o_ptr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    v = tl.load(x_ptr + i)
    tl.store(o_ptr + i, v / (1.0 + tl.exp(-v)))


BACKENDS = {"silu": silu_kernel, "swish": silu_kernel}


class Config:
    activation = "silu"


def make():
    torch.manual_seed(0)
    x, config = torch.randn(8, device=DEVICE), Config()

    def step():
        out = torch.empty_like(x)
        BACKENDS[config.activation][(1,)](x, out, BLOCK=8)
        return out

    def vary():
        config.activation = "swish" if config.activation == "silu" else "silu"
        x.add_(1)

    return {"step": step, "vary": vary, "reset": None}
