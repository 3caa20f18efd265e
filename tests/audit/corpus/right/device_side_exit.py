"""The adapter kernel is always launched and leaves early on the device: the fixed form of a host short-
circuit.
"""

import torch
import triton
import triton.language as tl

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = []
SUBJECTS = []


@triton.jit
def expand_kernel(x_ptr, w_ptr, id_ptr, o_ptr, N: tl.constexpr):
    adapter = tl.load(id_ptr)
    if adapter == -1:
        return
    i = tl.arange(0, N)
    v = tl.load(o_ptr + i) + tl.load(x_ptr + i) * tl.load(w_ptr + adapter * N + i)
    tl.store(o_ptr + i, v)


class Adapter:
    def __init__(self):
        torch.manual_seed(0)
        self.x = torch.randn(16, device=DEVICE)
        self.w = torch.randn(2, 16, device=DEVICE)
        self.lora_id = torch.tensor([-1], dtype=torch.int32, device=DEVICE)
        self.lora_names = []

    def step(self):
        out = self.x * 2
        expand_kernel[(1,)](self.x, self.w, self.lora_id, out, N=16)
        return out


def make():
    a = Adapter()

    def vary():
        a.lora_id.fill_(1)
        a.lora_names.append("sql")

    return {"step": a.step, "vary": vary, "reset": None}
