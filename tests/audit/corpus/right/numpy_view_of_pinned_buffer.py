"""The step copies a whole pinned buffer; the host fills it through a numpy view, and counts in other numpy
arrays.
"""

import numpy as np
import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = []
SUBJECTS = []


class CpuGpuBuffer:
    """As in vLLM: one array, seen as numpy and as a pinned tensor, with its copy on the device."""

    def __init__(self, n, dtype):
        self.cpu = graphs.host(torch.zeros(n, dtype=dtype), pinned=True)
        self.np = self.cpu.numpy()
        self.gpu = torch.zeros(n, dtype=dtype, device=DEVICE)

    def copy_to_gpu(self):
        return self.gpu.copy_(self.cpu, non_blocking=True)


class InputBatch:
    def __init__(self):
        self.positions = CpuGpuBuffer(6, torch.int64)
        self.ids = CpuGpuBuffer(6, torch.int64)
        self.num_computed = np.zeros(6, dtype=np.int32)

    def advance(self):
        self.num_computed += np.arange(6, dtype=np.int32)
        self.positions.np[:] = self.num_computed % 16
        self.ids.np[:] = (self.ids.np * 5 + 3) % 11


def make():
    torch.manual_seed(0)
    batch = InputBatch()
    embed, wpe = torch.randn(11, 4, device=DEVICE), torch.randn(16, 4, device=DEVICE)

    def step():
        ids, positions = batch.ids.copy_to_gpu(), batch.positions.copy_to_gpu()
        h = torch.nn.functional.embedding(ids, embed) + wpe[positions]
        return torch.nn.functional.layer_norm(h, (4,))

    return {"step": step, "vary": batch.advance, "reset": None}
