"""A kernel writes the rows of real tokens only; the residual add returns the padding rows of its empty
output too.
"""

import torch
import triton
import triton.language as tl

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["unwritten-read"]
SUBJECTS = ["gather_scale", "out", "empty", "add", "rows"]


@triton.jit
def gather_scale_kernel(x_ptr, index_ptr, count_ptr, out_ptr, D: tl.constexpr):
    row = tl.program_id(0)
    count = tl.load(count_ptr)
    if row >= count:
        return
    source = tl.load(index_ptr + row)
    cols = tl.arange(0, D)
    tl.store(out_ptr + row * D + cols, tl.load(x_ptr + source * D + cols) * 0.5)


@triton.jit
def bias_kernel(x_ptr, bias_ptr, D: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, D)
    at = x_ptr + row * D + cols
    tl.store(at, tl.load(at) + tl.load(bias_ptr + cols))


class Permute:
    def __init__(self, tokens=6, dim=8):
        torch.manual_seed(0)
        self.x = torch.randn(tokens, dim, device=DEVICE)
        self.bias = torch.randn(dim, device=DEVICE)
        self.index = torch.randperm(tokens).to(DEVICE)
        self.count = torch.tensor([4], dtype=torch.int32, device=DEVICE)

    def forward(self):
        tokens, dim = self.x.shape
        out = torch.empty_like(self.x)  # HERE
        gather_scale_kernel[(tokens,)](self.x, self.index, self.count, out, D=dim)
        bias_kernel[(tokens,)](out, self.bias, D=dim)  # HERE
        return (out + self.x).sum(0)  # HERE


def make():
    layer = Permute()

    def vary():
        layer.x.mul_(1.1)
        layer.index.copy_(layer.index.roll(1))

    return {"step": layer.forward, "vary": vary, "reset": None}
