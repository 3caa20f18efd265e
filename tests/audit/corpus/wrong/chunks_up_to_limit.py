"""One launch per chunk, on views of the buffers, up to a limit of the host."""

import torch
import triton.language as tl

from mrv2lab import graphs
from mrv2lab.kernels.dual import DualKernel

DEVICE = graphs.device_of("auto")

EXPECT = ["lost-kernel", "frozen-host-value"]
SUBJECTS = ["limit", "chunk_kernel"]


@DualKernel
def chunk_kernel(x_ptr, o_ptr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    v = tl.load(x_ptr + i)
    tl.store(o_ptr + i, v - tl.sum(v, axis=0) / BLOCK)


class Chunked:
    CHUNK = 4

    def __init__(self):
        torch.manual_seed(0)
        self.x, self.out = torch.randn(32, device=DEVICE), torch.zeros(32, device=DEVICE)
        self.limit = 8

    def step(self):
        self.out.zero_()
        for lo in range(0, self.limit, self.CHUNK):  # HERE
            hi = lo + self.CHUNK
            chunk_kernel[(1,)](self.x[lo:hi], self.out[lo:hi], BLOCK=self.CHUNK)  # HERE
        return self.out


def make():
    chunked = Chunked()

    def vary():
        chunked.limit += 4

    return {"step": chunked.step, "vary": vary, "reset": None}
