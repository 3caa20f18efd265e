"""A host staging buffer is copied to the device inside the graph and refilled in place: replay sees the
new values.
"""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = []
SUBJECTS = []


def make():
    torch.manual_seed(0)
    staging = graphs.host(torch.tensor([1, 2, 3]), pinned=True)
    ids = torch.zeros(3, dtype=torch.long, device=DEVICE)
    table = torch.randn(16, 4, device=DEVICE)

    def step():
        ids.copy_(staging, non_blocking=True)
        return table[ids].sum(0)

    def vary():
        staging.copy_((staging + 1) % 16)

    return {"step": step, "vary": vary, "reset": None}
