"""The loop over layers ends at a layer that the host's policy chooses."""

import torch
import triton.language as tl

from mrv2lab import graphs
from mrv2lab.kernels.dual import DualKernel

DEVICE = graphs.device_of("auto")

EXPECT = ["lost-kernel", "frozen-host-value"]
SUBJECTS = ["exit_at", "layer_kernel", "policy"]


@DualKernel
def layer_kernel(h_ptr, w_ptr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(h_ptr + i, tl.load(h_ptr + i) * tl.load(w_ptr + i))


class Policy:
    exit_at = 2


class Stack:
    def __init__(self, depth=6):
        torch.manual_seed(0)
        self.weights = torch.rand(depth, 8, device=DEVICE) + 0.5
        self.x, self.h = torch.randn(8, device=DEVICE), torch.zeros(8, device=DEVICE)
        self.policy = Policy()

    def run(self):
        self.h.copy_(self.x)
        for number, w in enumerate(self.weights.unbind()):
            if number == self.policy.exit_at:  # HERE
                break
            layer_kernel[(1,)](self.h, w, BLOCK=8)  # HERE
        return self.h


def make():
    stack = Stack()

    def vary():
        stack.policy.exit_at += 1

    return {"step": stack.run, "vary": vary, "reset": None}
