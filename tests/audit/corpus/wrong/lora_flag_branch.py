"""An early return on a host flag was taken at capture, so the adapter kernel is not in the graph."""

import torch
import triton
import triton.language as tl

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["lost-kernel", "frozen-host-value"]
SUBJECTS = ["expand_kernel", "no_lora_flag_cpu"]


@triton.jit
def expand_kernel(x_ptr, w_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    ok = i < n
    y = tl.load(out_ptr + i, mask=ok) + tl.load(x_ptr + i, mask=ok) * tl.load(w_ptr + i, mask=ok)
    tl.store(out_ptr + i, y, mask=ok)


class Adapter:
    def __init__(self):
        torch.manual_seed(0)
        self.x = torch.randn(32, device=DEVICE)
        self.w = torch.randn(32, device=DEVICE)
        self.out = torch.zeros(32, device=DEVICE)
        self.no_lora_flag_cpu = graphs.host(torch.tensor([True]))

    def apply(self, out):
        if self.no_lora_flag_cpu.item():  # HERE
            return
        expand_kernel[(2,)](self.x, self.w, out, 32, BLOCK=16)  # HERE

    def step(self):
        self.out.copy_(self.x * 2)
        self.apply(self.out)
        return self.out


def make():
    a = Adapter()

    def vary():
        a.no_lora_flag_cpu[0] = False
        a.x.add_(0.5)

    return {"step": a.step, "vary": vary, "reset": None}
