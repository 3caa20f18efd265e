"""A lazily made workspace of empty memory is kept at its largest size; idle splits are masked on the
device.
"""

import torch
import triton.language as tl

from mrv2lab import graphs
from mrv2lab.kernels.dual import DualKernel

DEVICE = graphs.device_of("auto")

EXPECT = []
SUBJECTS = []


@DualKernel
def split_kernel(x_ptr, len_ptr, part_ptr, CHUNK: tl.constexpr):
    pid = tl.program_id(0)
    n = tl.load(len_ptr)
    if pid * CHUNK >= n:
        return
    i = pid * CHUNK + tl.arange(0, CHUNK)
    tl.store(part_ptr + pid, tl.max(tl.load(x_ptr + i, mask=i < n, other=-1e9), axis=0))


@DualKernel
def max_kernel(part_ptr, len_ptr, o_ptr, CHUNK: tl.constexpr, SPLITS: tl.constexpr):
    i = tl.arange(0, SPLITS)
    part = tl.load(part_ptr + i, mask=i * CHUNK < tl.load(len_ptr), other=-1e9)
    tl.store(o_ptr, tl.max(part, axis=0))


class Workspace:
    buffers = {}

    @classmethod
    def get(cls, name, size):
        if name not in cls.buffers or cls.buffers[name].numel() < size:
            cls.buffers[name] = torch.empty(size, device=DEVICE)
        return cls.buffers[name]


def make():
    torch.manual_seed(0)
    Workspace.buffers = {}
    x, n, out = (
        torch.randn(32, device=DEVICE),
        torch.tensor([10], dtype=torch.int32, device=DEVICE),
        torch.zeros(1, device=DEVICE),
    )

    def step():
        part = Workspace.get("max", 4)
        split_kernel[(4,)](x, n, part, CHUNK=8)
        max_kernel[(1,)](part, n, out, CHUNK=8, SPLITS=4)
        return out

    return {"step": step, "vary": lambda: (n.copy_(n % 27 + 3), x.mul_(1.1)), "reset": None}
