"""A small graph is replayed, so there is one; nearly all of the step is issued beside it, each time."""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["silent-eager"]
SUBJECTS = ["forward"]


class Model:
    def __init__(self):
        self.x = torch.arange(8.0, device=DEVICE)
        self.graph = None

    def embed(self):
        return self.x * 2

    def forward(self):
        if self.graph is None:
            self.embed()
            self.graph = graphs.capture(self.embed, backend="auto")
        self.graph.replay()
        hidden = self.graph.outputs
        for _ in range(6):
            hidden = (hidden * 0.5).relu() + 1  # HERE
        return hidden


def make():
    model = Model()
    return {"step": model.forward, "vary": lambda: model.x.add_(1), "reset": None}
