"""The runner copies the ids of a step into the static buffers, and forgets the positions."""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["stale-input"]
SUBJECTS = ["positions"]


def make():
    ids = torch.zeros(4, dtype=torch.int64, device=DEVICE)
    positions = torch.zeros(4, dtype=torch.int64, device=DEVICE)
    table = torch.arange(32.0, device=DEVICE)

    def step():
        return table[ids] + table[positions]  # HERE

    def vary():
        ids.copy_(torch.tensor([3, 1, 2, 0], device=DEVICE))

    return {"step": step, "vary": vary, "reset": None, "inputs": [ids, positions]}
