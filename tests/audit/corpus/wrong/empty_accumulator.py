"""The accumulator is taken with torch.empty and added to, as if it began at zero."""

import torch
import triton
import triton.language as tl

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["unwritten-read"]
SUBJECTS = ["acc", "empty", "accumulate_kernel"]


@triton.jit
def accumulate_kernel(x_ptr, acc_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(acc_ptr + i, tl.load(acc_ptr + i) + tl.load(x_ptr + i))


def make():
    torch.manual_seed(0)
    chunks = [torch.randn(16, device=DEVICE) for _ in range(3)]

    def step():
        acc = torch.empty(16, device=DEVICE)  # HERE
        for chunk in chunks:
            accumulate_kernel[(1,)](chunk, acc, N=16)  # HERE
        return acc

    def vary():
        chunks[0].add_(1)

    return {"step": step, "vary": vary, "reset": None}
