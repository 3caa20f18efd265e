"""The sampler reads how many rows the model has computed from an attribute that the step sets."""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["left-behind"]
SUBJECTS = ["num_computed"]


class Model:
    def __init__(self):
        self.x = torch.ones(4, device=DEVICE)
        self.batch = 2
        self.num_computed = 0

    def forward(self):
        self.num_computed = self.batch  # HERE
        return self.x * 2


def make():
    model = Model()

    def vary():
        model.x.add_(1)
        model.batch = 3

    return {
        "step": model.forward,
        "vary": vary,
        "reset": None,
        "reads": lambda: {"num_computed": model.num_computed},
    }
