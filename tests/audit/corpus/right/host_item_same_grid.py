"""A host maximum is read during capture and changes, but rounds up to the same grid."""

import torch
import triton
import triton.language as tl

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = []
SUBJECTS = []


@triton.jit
def iota_kernel(len_ptr, o_ptr, stride, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    tl.store(o_ptr + row * stride + i, tl.where(i < tl.load(len_ptr + row), i, -1))


def make():
    lens_cpu = graphs.host(torch.tensor([2, 3], dtype=torch.int32))
    lens = torch.tensor([2, 3], dtype=torch.int32, device=DEVICE)
    out = torch.zeros(2, 16, dtype=torch.int32, device=DEVICE)

    def step():
        longest = lens_cpu.max().item()
        iota_kernel[(2, triton.cdiv(longest, 16))](lens, out, 16, BLOCK=16)
        return out

    def vary():
        lens_cpu.copy_(lens_cpu % 15 + 1)
        lens.copy_(lens_cpu)

    return {"step": step, "vary": vary, "reset": None}
