"""The step is sound at first and raises at the varied inputs."""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["AuditError"]
SUBJECTS = ["overflow", "ValueError", "capacity"]


class Cache:
    def __init__(self):
        self.rows = torch.zeros(4, 2, device=DEVICE)
        self.used = 3

    def step(self):
        if self.used >= len(self.rows):
            raise ValueError("cache overflow: over capacity")  # HERE
        return self.rows + 1


def make():
    c = Cache()

    def vary():
        c.used += 1

    return {"step": c.step, "vary": vary, "reset": None}
