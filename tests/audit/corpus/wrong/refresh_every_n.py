"""Scales are refreshed in every second iteration only; the captured iteration was another one."""

import torch
import triton
import triton.language as tl

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["lost-kernel", "frozen-host-value"]
SUBJECTS = ["iteration", "refresh_kernel"]


@triton.jit
def refresh_kernel(x_ptr, s_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(s_ptr, tl.max(tl.abs(tl.load(x_ptr + i)), 0))


class Fp8Scale:
    def __init__(self):
        torch.manual_seed(0)
        self.iteration = 1
        self.x = torch.randn(16, device=DEVICE)
        self.scale = torch.ones(1, device=DEVICE)

    def forward(self):
        if self.iteration % 2 == 0:  # HERE
            refresh_kernel[(1,)](self.x, self.scale, N=16)  # HERE
        return self.x / self.scale


def make():
    f = Fp8Scale()

    def vary():
        f.iteration += 1
        f.x.mul_(1.5)

    return {"step": f.forward, "vary": vary, "reset": None}
