"""Right twin of the lazy plan: every step begins with a fresh plan object, so the planner is in the graph."""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = []
SUBJECTS = []


@dataclass
class SchedMeta:
    ready: bool = False


@triton.jit
def plan_kernel(len_ptr, plan_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(plan_ptr + i, tl.load(len_ptr + i) * 2 + 1)


@triton.jit
def use_kernel(plan_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out_ptr + i, tl.load(plan_ptr + i) * 10)


class Backend:
    def __init__(self):
        self.lens = torch.tensor([3, 1, 4, 1], dtype=torch.int32, device=DEVICE)
        self.plan = torch.zeros(4, dtype=torch.int32, device=DEVICE)
        self.out = torch.zeros(4, dtype=torch.int32, device=DEVICE)

    def forward(self):
        meta = SchedMeta()
        for _ in range(2):
            if not meta.ready:
                plan_kernel[(1,)](self.lens, self.plan, N=4)
                meta.ready = True
            use_kernel[(1,)](self.plan, self.out, N=4)
        return self.out


def make():
    b = Backend()
    return {"step": b.forward, "vary": lambda: b.lens.add_(1), "reset": None}
