"""The step drains a host queue that reset() refills; only the queue's bookkeeping depends on it."""

from collections import deque

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = []
SUBJECTS = []


class Scheduler:
    def __init__(self):
        torch.manual_seed(0)
        self.waiting = deque([1, 2, 3])
        self.done = []
        self.x = torch.randn(3, 4, device=DEVICE)

    def step(self):
        while self.waiting:
            self.done.append(self.waiting.popleft())
        return self.x.amax(-1)

    def refill(self):
        self.waiting.extend([4, 5])


def make():
    s = Scheduler()
    return {"step": s.step, "vary": lambda: s.x.neg_(), "reset": s.refill}
