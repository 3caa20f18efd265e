"""Kernels find the adapters' weights by a table of addresses; a reload makes new weights, not a new table."""

import torch
import triton
import triton.language as tl

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["moved-address"]
SUBJECTS = ["weights"]


@triton.jit
def gather(ptrs, x, y, first, second, N: tl.constexpr):
    # The emulator lets a kernel touch its arguments only, so the weights are two of them.
    at = tl.arange(0, N)
    weight = tl.load(ptrs + tl.program_id(0)).to(tl.pointer_type(tl.float32))
    tl.store(y + tl.program_id(0) * N + at, tl.load(x + at) * tl.load(weight + at))


class Punica:
    def __init__(self):
        self.weights = [torch.full((8,), float(i + 1), device=DEVICE) for i in range(2)]
        self.pointers = torch.tensor([w.data_ptr() for w in self.weights], device=DEVICE)
        self.x = torch.arange(8.0, device=DEVICE)
        self.y = torch.zeros(2, 8, device=DEVICE)

    def step(self):
        gather[(2,)](self.pointers, self.x, self.y, *self.weights, 8)  # HERE
        return self.y

    def reload(self):
        self.x.add_(1)
        self.weights = [w * 3 for w in self.weights]


def make():
    punica = Punica()
    return {"step": punica.step, "vary": punica.reload, "reset": None}
