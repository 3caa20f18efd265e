"""The runner replays its own graph for batch 4 and falls back to eager for a batch it has no graph for."""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["silent-eager"]
SUBJECTS = ["step", "__call__", "execute"]


class GraphRunner:
    def __init__(self, sizes):
        torch.manual_seed(0)
        self.x = torch.randn(16, 4, device=DEVICE)
        self.w = torch.randn(4, 4, device=DEVICE)
        self.out = torch.zeros(16, 4, device=DEVICE)
        self.batch_size = 4
        self.graphs = {}
        for n in sizes:
            self.model(n)
            self.graphs[n] = graphs.capture(lambda n=n: self.model(n))

    def model(self, n):
        self.out[:n].copy_(self.x[:n] @ self.w)

    def __call__(self):
        if self.batch_size in self.graphs:
            self.graphs[self.batch_size].replay()
        else:
            self.model(self.batch_size)
        return self.out


def make():
    r = GraphRunner([2, 4, 8])

    def vary():
        r.x.add_(0.5)
        r.batch_size = 5

    return {"step": r, "vary": vary, "reset": None}
