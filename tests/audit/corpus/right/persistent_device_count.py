"""The persistent kernel reads its number of tiles from the device; the host's count is for the log only."""

import torch
import triton.language as tl

from mrv2lab import graphs
from mrv2lab.kernels.dual import DualKernel

DEVICE = graphs.device_of("auto")

EXPECT = []
SUBJECTS = []


@DualKernel
def persistent_kernel(x_ptr, o_ptr, tiles_ptr, PROGRAMS: tl.constexpr, BLOCK: tl.constexpr):
    tiles = tl.load(tiles_ptr)
    for tile in range(tl.program_id(0), tiles, PROGRAMS):
        i = tile * BLOCK + tl.arange(0, BLOCK)
        tl.store(o_ptr + i, tl.load(x_ptr + i) + 1.0)


class Persistent:
    def __init__(self):
        self.x, self.out = torch.arange(64.0, device=DEVICE), torch.zeros(64, device=DEVICE)
        self.tiles = torch.tensor([3], dtype=torch.int32, device=DEVICE)
        self.host_tiles, self.log = 3, []

    def __call__(self):
        self.log.append(f"{self.host_tiles} tiles")
        self.out.zero_()
        persistent_kernel[(2,)](self.x, self.out, self.tiles, PROGRAMS=2, BLOCK=8)
        return self.out


def make():
    layer = Persistent()

    def vary():
        layer.host_tiles = layer.host_tiles % 6 + 2
        layer.tiles.fill_(layer.host_tiles)

    return {"step": layer, "vary": vary, "reset": None}
