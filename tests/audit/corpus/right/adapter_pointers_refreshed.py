"""A table of addresses follows the adapters in place; zero stands for none, which kernels leave out."""

import torch
import triton
import triton.language as tl

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = []
SUBJECTS = []


@triton.jit
def gather(ptrs, x, y, weights, N: tl.constexpr):
    # The emulator lets a kernel touch its arguments only: `weights` is where the addresses lead.
    at, address = tl.arange(0, N), tl.load(ptrs + tl.program_id(0))
    is_there = (address != 0) & (at < N)
    weight = tl.load(address.to(tl.pointer_type(tl.float32)) + at, mask=is_there, other=1.0)
    tl.store(y + tl.program_id(0) * N + at, tl.load(x + at) * weight)


class Punica:
    def __init__(self):
        self.pool = torch.rand(4, 8, device=DEVICE)
        self.pointers = torch.zeros(3, dtype=torch.int64, device=DEVICE)
        self.x, self.y = torch.arange(8.0, device=DEVICE), torch.zeros(3, 8, device=DEVICE)
        self.load([0, 1, None])

    def load(self, adapters):
        addresses = [0 if a is None else self.pool[a].data_ptr() for a in adapters]
        self.pointers.copy_(torch.tensor(addresses))

    def step(self):
        gather[(3,)](self.pointers, self.x, self.y, self.pool, 8)
        return self.y

    def next_batch(self):
        self.x.add_(1)
        self.load([3, None, 2])


def make():
    punica = Punica()
    return {"step": punica.step, "vary": punica.next_batch, "reset": None}
