"""A property of a dataclass, computed from a field that changes, goes to a kernel as a scalar."""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["frozen-host-value"]
SUBJECTS = ["head_dim", "softmax_scale", "cfg"]


@dataclass
class Config:
    head_dim: int = 4

    @property
    def softmax_scale(self):
        return self.head_dim**-0.5  # HERE


@triton.jit
def scale_kernel(x_ptr, o_ptr, scale, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(o_ptr + i, tl.load(x_ptr + i) * scale)


def make():
    torch.manual_seed(0)
    cfg = Config()
    x = torch.randn(16, device=DEVICE)
    o = torch.zeros(16, device=DEVICE)

    def step():
        scale_kernel[(1,)](x, o, cfg.softmax_scale, N=16)  # HERE
        return o

    def vary():
        cfg.head_dim += 5

    return {"step": step, "vary": vary, "reset": None}
