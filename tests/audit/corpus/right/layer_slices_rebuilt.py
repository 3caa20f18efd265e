"""Each step slices one static cache into fresh views and passes their strides as ints."""

import torch
import triton.language as tl

from mrv2lab import graphs
from mrv2lab.kernels.dual import DualKernel

DEVICE = graphs.device_of("auto")

EXPECT = []
SUBJECTS = []


@DualKernel
def write_kernel(x_ptr, cache_ptr, slots_ptr, stride_slot, DIM: tl.constexpr):
    token = tl.program_id(0)
    d = tl.arange(0, DIM)
    slot = tl.load(slots_ptr + token)
    tl.store(cache_ptr + slot * stride_slot + d, tl.load(x_ptr + token * DIM + d))


class Cache:
    def __init__(self, layers=3):
        torch.manual_seed(0)
        self.kv = torch.zeros(8, layers, 4, device=DEVICE)
        self.x = torch.randn(2, 4, device=DEVICE)
        self.slots = torch.tensor([1, 5], device=DEVICE)
        self.views = []

    def step(self):
        self.views = [self.kv[:, n] for n in range(self.kv.shape[1])]
        for n, view in enumerate(self.views):
            write_kernel[(2,)](self.x * (n + 1), view, self.slots, view.stride(0), DIM=4)
        return self.kv


def make():
    cache = Cache()

    def vary():
        cache.slots.copy_((cache.slots + 3) % 8)
        cache.x.add_(1)

    return {"step": cache.step, "vary": vary, "reset": None}
