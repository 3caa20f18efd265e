"""Under capture a semaphore comes from a cache, where nobody clears it; else it is made anew."""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["frozen-host-value", "not-rearmed"]
SUBJECTS = ["is_current_stream_capturing", "cached"]


class Layer:
    def __init__(self):
        self.x = torch.arange(8.0, device=DEVICE)
        self.cached = torch.zeros(1, dtype=torch.int32, device=DEVICE)

    def semaphore(self):
        if torch.cuda.is_current_stream_capturing():  # HERE
            return self.cached
        return torch.zeros(1, dtype=torch.int32, device=DEVICE)

    def forward(self):
        taken = self.semaphore()
        y = self.x * (taken == 0)
        taken.add_(1)
        return y


def make():
    layer = Layer()
    return {"step": layer.forward, "vary": lambda: layer.x.add_(1), "reset": None}
