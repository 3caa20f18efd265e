"""A runner with graphs of its own replays one in every step, another one after the batch grows."""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = []
SUBJECTS = []


class GraphRunner:
    def __init__(self, sizes):
        torch.manual_seed(0)
        self.x = torch.randn(16, 4, device=DEVICE)
        self.w = torch.randn(4, 4, device=DEVICE)
        self.out = torch.zeros(16, 4, device=DEVICE)
        self.batch_size = 3
        self.graphs = {}
        for n in sizes:
            self.model(n)
            self.graphs[n] = graphs.capture(lambda n=n: self.model(n))

    def model(self, n):
        self.out[:n].copy_(self.x[:n] @ self.w)

    def __call__(self):
        padded = next(n for n in self.graphs if n >= self.batch_size)
        self.graphs[padded].replay()
        return self.out


def make():
    r = GraphRunner([4, 8, 16])

    def vary():
        r.x.add_(0.5)
        r.batch_size = r.batch_size % 16 + 2

    return {"step": r, "vary": vary, "reset": None}
