"""torch.equal decides on the host whether the inputs are the same as last time."""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["host-sync"]
SUBJECTS = ["equal"]


class Skipping:
    def __init__(self):
        torch.manual_seed(0)
        self.x, self.last = torch.randn(4, device=DEVICE), torch.zeros(4, device=DEVICE)
        self.out = torch.zeros(4, device=DEVICE)

    def step(self):
        if not torch.equal(self.x, self.last):  # HERE
            self.out.copy_(self.x.exp())
        return self.out


def make():
    layer = Skipping()
    return {"step": layer.step, "vary": lambda: layer.x.mul_(0.5), "reset": None}
