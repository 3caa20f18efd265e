"""The grid covers the number of elements at capture; later ones are longer."""

import torch
import triton
import triton.language as tl

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["frozen-grid", "frozen-host-value"]
SUBJECTS = ["square_kernel", "length"]


@triton.jit
def square_kernel(x_ptr, o_ptr, n_ptr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    n = tl.load(n_ptr)
    v = tl.load(x_ptr + i, mask=i < n, other=0.0)
    tl.store(o_ptr + i, v * v, mask=i < n)


class Batch:
    length = 8


def make():
    torch.manual_seed(0)
    x = torch.randn(64, device=DEVICE)
    n = torch.tensor([8], device=DEVICE, dtype=torch.int32)
    batch = Batch()

    def step():
        out = torch.zeros_like(x)
        square_kernel[(triton.cdiv(batch.length, 8),)](x, out, n, BLOCK=8)  # HERE
        return out

    def vary():
        batch.length = batch.length % 48 + 16
        n.fill_(batch.length)

    return {"step": step, "vary": vary, "reset": None}
