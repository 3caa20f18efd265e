"""A runner copies what its graph gave before it hands it out."""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")


class Runner:
    def __init__(self):
        self.x = torch.ones(4, device=DEVICE)
        self.graph = None

    def execute(self):
        if self.graph is None:
            self.model()
            self.graph = graphs.capture(self.model)
        self.graph.replay()
        return self.graph.outputs.clone()

    def model(self):
        return self.x * 2


def make():
    runner = Runner()
    vary = lambda: runner.x.add_(1)
    return {"step": runner.execute, "vary": vary, "reset": None, "in_flight": 1}
