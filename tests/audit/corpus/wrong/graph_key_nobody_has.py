"""Graphs are kept by rows and requests; a step asks for rows and rows per request, and never finds one."""

from types import SimpleNamespace

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["silent-eager"]
SUBJECTS = ["descriptor"]


class Runner:
    def __init__(self):
        self.x, self.rows = torch.ones(8, 4, device=DEVICE), 8
        self.graphs = {}
        self.forward(8)
        for rows in (8, 4):
            self.graphs[rows, rows // 2] = graphs.capture(lambda rows=rows: self.forward(rows))

    def forward(self, rows):
        return torch.softmax(self.x[:rows] * 2, 1)

    def descriptor(self, rows):
        per_request = 2
        return rows, per_request

    def step(self):
        graph = self.graphs.get(self.descriptor(self.rows))
        if graph is None:  # HERE
            return self.forward(self.rows)
        graph.replay()
        return graph.outputs

    def vary(self):
        self.rows = 8
        self.x.add_(0.25)


def make():
    def twin():
        runner = Runner()
        return SimpleNamespace(step=runner.step, vary=runner.vary, runner=runner)

    one = twin()
    return {"step": one.step, "vary": one.vary, "reset": None, "twin": twin}
