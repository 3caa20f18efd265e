"""The grid is computed from the buffer's own, constant shape; the true length is read on the device."""

import torch
import triton
import triton.language as tl

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = []
SUBJECTS = []


@triton.jit
def masked_double_kernel(x_ptr, n_ptr, o_ptr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x_ptr + i, mask=i < tl.load(n_ptr), other=0.0)
    tl.store(o_ptr + i, v * 2)


def make():
    torch.manual_seed(0)
    x = torch.randn(32, device=DEVICE)
    n = torch.tensor([3], dtype=torch.int32, device=DEVICE)
    host = {"n": 3}

    def step():
        out = torch.empty_like(x)
        grid = lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)  # noqa: E731
        masked_double_kernel[grid](x, n, out, BLOCK=8)
        return out

    def vary():
        host["n"] = host["n"] % 30 + 2
        n.fill_(host["n"])

    return {"step": step, "vary": vary, "reset": None}
