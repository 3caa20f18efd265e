"""The row stride goes to the kernel as an int from a layout record, which changes with the padding."""

from typing import NamedTuple

import torch
import triton.language as tl

from mrv2lab import graphs
from mrv2lab.kernels.dual import DualKernel

DEVICE = graphs.device_of("auto")

EXPECT = ["frozen-host-value"]
SUBJECTS = ["stride", "layout"]


class Layout(NamedTuple):
    rows: int
    stride: int


@DualKernel
def row_sum_kernel(x_ptr, o_ptr, stride, cols, COLS: tl.constexpr):
    row = tl.program_id(0)
    c = tl.arange(0, COLS)
    v = tl.load(x_ptr + row * stride + c, mask=c < cols, other=0.0)
    tl.store(o_ptr + row, tl.sum(v, axis=0))


class Packed:
    def __init__(self):
        torch.manual_seed(0)
        self.layout = Layout(3, 5)
        self.x, self.out = torch.randn(64, device=DEVICE), torch.zeros(3, device=DEVICE)

    def forward(self):
        row_sum_kernel[(self.layout.rows,)](self.x, self.out, self.layout.stride, 5, COLS=8)  # HERE
        return self.out


def make():
    packed = Packed()

    def vary():
        packed.layout = packed.layout._replace(stride=packed.layout.stride + 3)

    return {"step": packed.forward, "vary": vary, "reset": None}
