"""A kernel skips rows whose index is -1 and so leaves them unwritten; the reduction reads them."""

import torch
import triton
import triton.language as tl

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["unwritten-read"]
SUBJECTS = ["gather_kernel", "empty", "tmp", "mul", "sum"]


@triton.jit
def gather_kernel(idx_ptr, w_ptr, o_ptr, D: tl.constexpr):
    row = tl.program_id(0)
    j = tl.load(idx_ptr + row)
    if j == -1:
        return
    d = tl.arange(0, D)
    tl.store(o_ptr + row * D + d, tl.load(w_ptr + j * D + d))


class Embedding:
    def __init__(self):
        torch.manual_seed(0)
        self.w = torch.randn(16, 8, device=DEVICE)
        self.idx = torch.tensor([3, -1, 5, 2], dtype=torch.int32, device=DEVICE)

    def forward(self):
        tmp = torch.empty(4, 8, device=DEVICE)  # HERE
        gather_kernel[(4,)](self.idx, self.w, tmp, D=8)
        return tmp.sum(0)  # HERE


def make():
    e = Embedding()

    def vary():
        e.w.add_(0.5)

    return {"step": e.forward, "vary": vary, "reset": None}
