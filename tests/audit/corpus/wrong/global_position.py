"""A module-global int says where in the cache to write."""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["frozen-host-value"]
SUBJECTS = ["CURRENT_POS"]

CURRENT_POS = 0


def make():
    global CURRENT_POS
    CURRENT_POS = 0
    torch.manual_seed(0)
    cache = torch.zeros(16, 4, device=DEVICE)
    key = torch.randn(4, device=DEVICE)

    def step():
        cache[CURRENT_POS].copy_(key)  # HERE
        return cache.sum(0)

    def vary():
        global CURRENT_POS
        CURRENT_POS = (CURRENT_POS + 1) % 16
        key.add_(1)

    return {"step": step, "vary": vary, "reset": None}
