"""A lambda grid over the meta parameters reads the number of live rows."""

import torch
import triton
import triton.language as tl

from mrv2lab import graphs
from mrv2lab.kernels.dual import DualKernel

DEVICE = graphs.device_of("auto")

EXPECT = ["frozen-grid", "frozen-host-value"]
SUBJECTS = ["rows", "grid", "scale_rows_kernel"]


@DualKernel
def scale_rows_kernel(x_ptr, o_ptr, cols, total, ROWS: tl.constexpr, COLS: tl.constexpr):
    r = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    c = tl.arange(0, COLS)
    at = r[:, None] * cols + c[None, :]
    ok = (r[:, None] < total) & (c[None, :] < cols)
    tl.store(o_ptr + at, 2.0 * tl.load(x_ptr + at, mask=ok, other=0.0), mask=ok)


class Rows:
    def __init__(self):
        torch.manual_seed(0)
        self.rows = 3
        self.x = torch.randn(16, 4, device=DEVICE)
        self.out = torch.zeros(16, 4, device=DEVICE)

    def run(self):
        self.out.zero_()
        grid = lambda meta: (triton.cdiv(self.rows, meta["ROWS"]),)  # HERE
        scale_rows_kernel[grid](self.x, self.out, 4, 16, ROWS=2, COLS=4)  # HERE
        return self.out


def make():
    layer = Rows()

    def vary():
        layer.rows = layer.rows % 12 + 4

    return {"step": layer.run, "vary": vary, "reset": None}
