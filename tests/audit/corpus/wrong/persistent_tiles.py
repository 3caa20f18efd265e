"""A persistent kernel with a fixed grid walks a number of tiles that the host passes as an int."""

import torch
import triton.language as tl

from mrv2lab import graphs
from mrv2lab.kernels.dual import DualKernel

DEVICE = graphs.device_of("auto")

EXPECT = ["frozen-host-value"]
SUBJECTS = ["tiles", "num_tiles"]


@DualKernel
def persistent_kernel(x_ptr, o_ptr, num_tiles, PROGRAMS: tl.constexpr, BLOCK: tl.constexpr):
    for tile in range(tl.program_id(0), num_tiles, PROGRAMS):
        i = tile * BLOCK + tl.arange(0, BLOCK)
        tl.store(o_ptr + i, tl.load(x_ptr + i) + 1.0)


class Scheduler:
    def __init__(self):
        self.tiles = 3


class Persistent:
    PROGRAMS = 2

    def __init__(self, scheduler):
        self.scheduler = scheduler
        self.x = torch.arange(64, dtype=torch.float32, device=DEVICE)
        self.out = torch.zeros(64, device=DEVICE)

    def __call__(self):
        self.out.fill_(0)
        num_tiles = self.scheduler.tiles  # HERE
        persistent_kernel[(self.PROGRAMS,)](
            self.x,
            self.out,
            num_tiles,
            PROGRAMS=self.PROGRAMS,
            BLOCK=8,  # HERE
        )
        return self.out


def make():
    layer = Persistent(Scheduler())

    def vary():
        layer.scheduler.tiles = layer.scheduler.tiles % 6 + 2

    return {"step": layer, "vary": vary, "reset": None}
