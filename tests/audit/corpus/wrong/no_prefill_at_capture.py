"""The prefill kernel is skipped when no request prefills, as at capture."""

import torch
import triton
import triton.language as tl

from mrv2lab import graphs
from mrv2lab.kernels.dual import DualKernel

DEVICE = graphs.device_of("auto")

EXPECT = ["lost-kernel", "frozen-host-value"]
SUBJECTS = ["num_prefill", "prefill_kernel"]


@DualKernel
def prefill_kernel(x_ptr, o_ptr, start, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(o_ptr + start + i, tl.load(x_ptr + start + i, mask=i < n, other=0.0) * 3.0, mask=i < n)


@DualKernel
def decode_kernel(x_ptr, o_ptr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(o_ptr + i, tl.load(x_ptr + i) + 1.0)


class Attention:
    def __init__(self):
        torch.manual_seed(0)
        self.num_prefill = 0
        self.x, self.out = torch.randn(24, device=DEVICE), torch.zeros(24, device=DEVICE)

    def _prefill(self):
        n = self.num_prefill
        prefill_kernel[(triton.cdiv(n, 4),)](self.x, self.out, 8, n, BLOCK=4)  # HERE

    def forward(self):
        self.out.zero_()
        if self.num_prefill > 0:  # HERE
            self._prefill()  # HERE
        decode_kernel[(1,)](self.x, self.out, BLOCK=8)
        return self.out


def make():
    layer = Attention()

    def vary():
        layer.num_prefill += 5

    return {"step": layer.forward, "vary": vary, "reset": None}
