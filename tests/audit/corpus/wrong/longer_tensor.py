"""A longer tensor takes the place of the captured one: both the address and the grid are of the old one."""

import torch
import triton
import triton.language as tl

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["frozen-host-value", "moved-address", "frozen-grid"]
SUBJECTS = ["tokens", "add_one_kernel"]


@triton.jit
def add_one_kernel(x_ptr, o_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(o_ptr + i, tl.load(x_ptr + i, mask=i < n) + 1.0, mask=i < n)


class Job:
    def __init__(self):
        self.tokens = torch.arange(8.0, device=DEVICE)
        self.out = torch.zeros(64, device=DEVICE)

    def launch(self):
        n = self.tokens.numel()  # HERE
        grid = lambda meta: (triton.cdiv(n, meta["BLOCK"]),)  # noqa: E731  # HERE
        add_one_kernel[grid](self.tokens, self.out, n, BLOCK=4)  # HERE
        return self.out


def make():
    job = Job()

    def vary():
        n = job.tokens.numel() % 48 + 8
        job.tokens = torch.arange(float(n), device=DEVICE) * 2

    return {"step": job.launch, "vary": vary, "reset": None}
