"""The loss is formatted into a log line within the step."""

from collections import deque

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["host-sync"]
SUBJECTS = ["format", "item", "loss", "_local_scalar_dense"]


def make():
    torch.manual_seed(0)
    x, log = torch.randn(4, device=DEVICE), deque(maxlen=4)

    def step():
        loss = x.square().mean()
        log.append(f"loss {loss:.3f}")  # HERE
        return loss

    return {"step": step, "vary": lambda: x.mul_(2), "reset": None}
