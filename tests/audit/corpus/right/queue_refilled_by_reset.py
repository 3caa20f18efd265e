"""The step pops its plan from a deque that reset fills again with an equal plan."""

import collections

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = []
SUBJECTS = []


class PlanQueue:
    """Layers ask for the next (name, width) of the schedule; the scheduler refills it before each step."""

    PLAN = (("attn", 4), ("mlp", 8), ("attn", 4))

    def __init__(self):
        self.pending = collections.deque()
        self.refill()

    def refill(self):
        self.pending.clear()
        self.pending.extend(self.PLAN)

    def next(self):
        return self.pending.popleft()


class Model:
    def __init__(self):
        torch.manual_seed(0)
        self.queue = PlanQueue()
        self.x = torch.randn(3, 8, device=DEVICE)
        self.w = {"attn": torch.randn(8, 8, device=DEVICE) / 4, "mlp": torch.randn(8, 8, device=DEVICE) / 4}

    def step(self):
        self.queue.refill() if not self.queue.pending else None
        h = self.x
        while self.queue.pending:
            name, width = self.queue.next()
            h = h.clone()
            h[:, :width] += torch.tanh(h @ self.w[name])[:, :width]
        return h


def make():
    model = Model()
    return {"step": model.step, "vary": lambda: model.x.mul_(1.1), "reset": model.queue.refill}
