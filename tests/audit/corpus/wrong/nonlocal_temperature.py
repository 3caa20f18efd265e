"""A Python float of the enclosing function scales the logits."""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["frozen-host-value"]
SUBJECTS = ["temperature"]


def make():
    torch.manual_seed(0)
    logits = torch.randn(2, 16, device=DEVICE)
    temperature = 1.0

    def step():
        scaled = logits / temperature  # HERE
        return torch.softmax(scaled, dim=-1)

    def vary():
        nonlocal temperature
        temperature += 0.5
        logits.add_(0.1)

    return {"step": step, "vary": vary, "reset": None}
