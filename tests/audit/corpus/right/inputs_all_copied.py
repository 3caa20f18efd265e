"""All inputs of a step are written into the static buffers."""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")


def make():
    ids = torch.zeros(4, dtype=torch.int64, device=DEVICE)
    positions = torch.zeros(4, dtype=torch.int64, device=DEVICE)
    table = torch.arange(32.0, device=DEVICE)

    def step():
        return table[ids] + table[positions]

    def vary():
        ids.copy_(torch.tensor([3, 1, 2, 0], device=DEVICE))
        positions.copy_(torch.arange(4, device=DEVICE))

    return {"step": step, "vary": vary, "reset": None, "inputs": [ids, positions]}
