"""Two semaphores come from a cache under capture, where nobody clears them: curing one is not enough."""

import functools

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["not-rearmed"]
SUBJECTS = ["arrived"]


class Layer:
    def __init__(self):
        self.x = torch.arange(8.0, device=DEVICE)
        self.cached = functools.cache(self.made)
        self.cached()  # made before the capture, which would hold the fill

    def made(self):
        return [torch.zeros(1, dtype=torch.int32, device=DEVICE) for _ in range(2)]

    def semaphores(self):
        if torch.cuda.is_current_stream_capturing():
            return self.cached()
        return self.made()

    def forward(self):
        arrived, ready = self.semaphores()
        y = self.x * (arrived == 0) * (ready == 0)
        arrived.add_(1)  # HERE
        ready.add_(1)  # HERE
        return y


def make():
    layer = Layer()
    return {"step": layer.forward, "vary": lambda: layer.x.add_(1), "reset": None}
