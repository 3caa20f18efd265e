"""Only num_warps follows the host's batch size: speed, and no result."""

import torch
import triton.language as tl

from mrv2lab import graphs
from mrv2lab.kernels.dual import DualKernel

DEVICE = graphs.device_of("auto")

EXPECT = []
SUBJECTS = []


@DualKernel
def square_kernel(x_ptr, o_ptr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x_ptr + i)
    tl.store(o_ptr + i, v * v)


class Tuned:
    def __init__(self):
        torch.manual_seed(0)
        self.batch, self.x = 2, torch.randn(64, device=DEVICE)

    def launch(self):
        out = torch.empty_like(self.x)
        square_kernel[(2,)](self.x, out, BLOCK=32, num_warps=1 if self.batch < 4 else 2)
        return out


def make():
    tuned = Tuned()

    def vary():
        tuned.batch = 6 - tuned.batch if tuned.batch != 3 else 4
        tuned.x.add_(1)

    return {"step": tuned.launch, "vary": vary, "reset": None}
