"""A planner stores whole grid tuples; the plan is replaced when the batch changes."""

import torch
import triton
import triton.language as tl

from mrv2lab import graphs
from mrv2lab.kernels.dual import DualKernel

DEVICE = graphs.device_of("auto")

EXPECT = ["frozen-grid", "frozen-host-value"]
SUBJECTS = ["grid", "plan", "tile_kernel"]


@DualKernel
def tile_kernel(x_ptr, o_ptr, width, BLOCK: tl.constexpr):
    at = tl.program_id(1) * width + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(o_ptr + at, tl.load(x_ptr + at) * 0.5)


class Plan:
    def __init__(self, cols, rows):
        self.grid = (triton.cdiv(cols, 4), rows)


class Planned:
    def __init__(self):
        torch.manual_seed(0)
        self.x = torch.randn(8, 16, device=DEVICE)
        self.plan = Plan(8, 2)

    def plan_for(self, cols, rows):
        self.plan = Plan(cols, rows)

    def run(self):
        out = torch.zeros_like(self.x)
        tile_kernel[self.plan.grid](self.x, out, 16, BLOCK=4)  # HERE
        return out


def make():
    planned = Planned()
    sizes = [(16, 3), (12, 6), (4, 8)]

    def vary():
        sizes.append(sizes.pop(0))
        planned.plan_for(*sizes[0])

    return {"step": planned.run, "vary": vary, "reset": None}
