"""With nothing pending the host skips a kernel that, with a device count of zero, would have done nothing."""

import torch
import triton.language as tl

from mrv2lab import graphs
from mrv2lab.kernels.dual import DualKernel

DEVICE = graphs.device_of("auto")

EXPECT = []
SUBJECTS = []


@DualKernel
def evict_kernel(cache_ptr, ids_ptr, count_ptr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    ok = i < tl.load(count_ptr)
    ids = tl.load(ids_ptr + i, mask=ok, other=0)
    tl.store(cache_ptr + ids, tl.full((BLOCK,), 0.0, tl.float32), mask=ok)


class Evicting:
    def __init__(self):
        torch.manual_seed(0)
        self.x, self.cache = torch.randn(8, device=DEVICE), torch.zeros(8, device=DEVICE)
        self.ids = torch.tensor([1, 6, 2, 3], device=DEVICE)
        self.count = torch.tensor([2], dtype=torch.int32, device=DEVICE)
        self.pending = 2

    def step(self):
        self.cache.copy_(self.x)
        if self.pending:
            evict_kernel[(1,)](self.cache, self.ids, self.count, BLOCK=4)
        return self.cache


def make():
    layer = Evicting()

    def vary():
        layer.pending = 3 - layer.pending if layer.pending in (0, 3) else 0
        layer.count.fill_(layer.pending)
        layer.x.add_(1)

    return {"step": layer.step, "vary": vary, "reset": None}
