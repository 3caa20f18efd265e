"""The loss is read on the host in the step."""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["host-sync"]
SUBJECTS = ["item", "local_scalar_dense"]


class Sampler:
    def __init__(self):
        torch.manual_seed(0)
        self.logits = torch.randn(8, device=DEVICE)

    def step(self):
        peak = self.logits.max().item()  # HERE
        return self.logits - peak


def make():
    s = Sampler()
    return {"step": s.step, "vary": lambda: s.logits.mul_(2), "reset": None}
