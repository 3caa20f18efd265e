"""A runner that counts in Python where the next row of a cache goes, and appends it between two graphs."""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")


class Runner:
    def __init__(self):
        self.token, self.key, self.out = (torch.ones(4, device=DEVICE) for _ in range(3))
        self.cache = torch.zeros(32, 4, device=DEVICE)
        self.length = 0
        self.project()
        self.sum_up()
        self.first, self.last = graphs.capture(self.project), graphs.capture(self.sum_up)

    def project(self):
        torch.mul(self.token, 2, out=self.key)

    def sum_up(self):
        torch.sum(self.cache, 0, out=self.out)

    def execute(self):
        self.first.replay()
        self.cache[self.length].copy_(self.key)
        self.length += 1
        self.last.replay()
        return self.out


def make():
    runner = Runner()
    return {"step": runner.execute, "vary": lambda: runner.token.add_(1), "reset": None}
