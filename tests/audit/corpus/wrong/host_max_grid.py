"""The grid's second dimension is the maximum of host-side lengths."""

import torch
import triton
import triton.language as tl

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["frozen-grid", "frozen-host-value"]
SUBJECTS = ["max", "seq_lens_cpu", "fill_kernel"]


@triton.jit
def fill_kernel(len_ptr, o_ptr, stride, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    n = tl.load(len_ptr + row)
    tl.store(o_ptr + row * stride + i, i, mask=i < n)


class Pages:
    def __init__(self):
        self.seq_lens_cpu = graphs.host(torch.tensor([3, 4], dtype=torch.int32))
        self.seq_lens = torch.tensor([3, 4], dtype=torch.int32, device=DEVICE)
        self.out = torch.zeros(2, 32, dtype=torch.int32, device=DEVICE)

    def build(self):
        self.out.zero_()
        longest = int(self.seq_lens_cpu.max())  # HERE
        fill_kernel[(2, triton.cdiv(longest, 4))](self.seq_lens, self.out, 32, BLOCK=4)  # HERE
        return self.out


def make():
    p = Pages()

    def vary():
        p.seq_lens_cpu.copy_(p.seq_lens_cpu % 20 + 6)
        p.seq_lens.copy_(p.seq_lens_cpu)

    return {"step": p.build, "vary": vary, "reset": None}
