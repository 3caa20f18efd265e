"""Kernels stand in a dict; the request names another one later."""

import torch
import triton.language as tl

from mrv2lab import graphs
from mrv2lab.kernels.dual import DualKernel

DEVICE = graphs.device_of("auto")

EXPECT = ["frozen-host-value", "lost-kernel"]
SUBJECTS = ["op", "KERNELS", "add_kernel", "mul_kernel", "request"]


@DualKernel
def add_kernel(x_ptr, y_ptr, o_ptr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(o_ptr + i, tl.load(x_ptr + i) + tl.load(y_ptr + i))


@DualKernel
def mul_kernel(x_ptr, y_ptr, o_ptr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(o_ptr + i, tl.load(x_ptr + i) * tl.load(y_ptr + i))


KERNELS = {"add": add_kernel, "mul": mul_kernel}


class Request:
    op = "add"


def make():
    torch.manual_seed(0)
    x, y, out = (torch.randn(16, device=DEVICE) for _ in range(3))
    request = Request()

    def step():
        kernel = KERNELS[request.op]  # HERE
        kernel[(1,)](x, y, out, BLOCK=16)  # HERE
        return out

    def vary():
        request.op = {"add": "mul", "mul": "add"}[request.op]

    return {"step": step, "vary": vary, "reset": None}
