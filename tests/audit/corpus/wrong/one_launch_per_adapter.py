"""One launch for each entry of a list that is longer now than at capture."""

import torch
import triton
import triton.language as tl

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["lost-kernel", "frozen-host-value"]
SUBJECTS = ["shrink_kernel", "active"]


@triton.jit
def shrink_kernel(x_ptr, w_ptr, o_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(o_ptr + i, tl.load(o_ptr + i) + tl.load(x_ptr + i) * tl.load(w_ptr + i))


def make():
    torch.manual_seed(0)
    x = torch.randn(16, device=DEVICE)
    bank = [torch.randn(16, device=DEVICE) for _ in range(6)]
    active = [0]

    def step():
        out = torch.zeros_like(x)
        for adapter in active:  # HERE
            shrink_kernel[(1,)](x, bank[adapter], out, N=16)  # HERE
        return out

    def vary():
        active.append(len(active) % 6)

    return {"step": step, "vary": vary, "reset": None}
