"""Lengths go from a numpy temporary to the device inside the step: a replay copies the capture's numbers
again.
"""

import numpy as np
import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["frozen-host-value", "moved-address"]
SUBJECTS = ["seq_lens", "lens", "staged", "host", "copy_"]


class InputBatch:
    """Host bookkeeping in numpy, as block managers keep it."""

    def __init__(self, max_reqs=4):
        self.num_computed = np.array([2, 5, 1, 0], dtype=np.int64)
        self.num_scheduled = np.array([1, 1, 3, 2], dtype=np.int64)

    def seq_lens(self):
        return self.num_computed + self.num_scheduled  # HERE

    def advance(self):
        self.num_computed += self.num_scheduled
        self.num_scheduled[:] = 1


class Runner:
    def __init__(self):
        torch.manual_seed(0)
        self.batch = InputBatch()
        self.lens_gpu = torch.zeros(4, dtype=torch.long, device=DEVICE)
        self.values = torch.randn(4, 16, device=DEVICE)

    def stage(self):
        staged = graphs.host(torch.from_numpy(self.batch.seq_lens()), pinned=True)  # HERE
        self.lens_gpu.copy_(staged, non_blocking=True)  # HERE

    def step(self):
        self.stage()
        valid = torch.arange(16, device=DEVICE) < self.lens_gpu[:, None]
        return (self.values * valid).sum(1) / self.lens_gpu


def make():
    runner = Runner()
    return {"step": runner.step, "vary": runner.batch.advance, "reset": None}
