"""The runner sets what the sampler reads, beside the graph."""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")


class Model:
    def __init__(self):
        self.x = torch.ones(4, device=DEVICE)
        self.num_computed = 0

    def forward(self):
        return self.x * 2


def make():
    model = Model()

    def vary():
        model.x.add_(1)
        model.num_computed = 3

    return {"step": model.forward, "vary": vary, "reset": None, "reads": lambda: model.num_computed}
