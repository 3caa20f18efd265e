"""A host flag is read during capture and changes later; both branches launch the same kernel with the same
arguments.
"""

import torch
import triton
import triton.language as tl

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = []
SUBJECTS = []


@triton.jit
def relu_kernel(x_ptr, o_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(o_ptr + i, tl.maximum(tl.load(x_ptr + i), 0.0))


class Layer:
    def __init__(self):
        torch.manual_seed(0)
        self.is_prefill_cpu = graphs.host(torch.tensor([True]))
        self.x = torch.randn(16, device=DEVICE)
        self.o = torch.zeros(16, device=DEVICE)
        self.tag = ""

    def step(self):
        if self.is_prefill_cpu.item():
            self.tag = "prefill"
            relu_kernel[(1,)](self.x, self.o, N=16)
        else:
            self.tag = "decode"
            relu_kernel[(1,)](self.x, self.o, N=16)
        return self.o


def make():
    layer = Layer()

    def vary():
        layer.is_prefill_cpu[0] = False
        layer.x.add_(0.5)

    return {"step": layer.step, "vary": vary, "reset": None}
