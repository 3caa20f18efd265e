"""A forward context, set by a context manager around the model, carries a count."""

from contextlib import contextmanager
from dataclasses import dataclass

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["frozen-host-value"]
SUBJECTS = ["num_actual", "_context", "scheduled"]


@dataclass(frozen=True)
class ForwardContext:
    num_actual: int


_context = None


@contextmanager
def set_forward_context(num_actual):
    global _context
    before, _context = _context, ForwardContext(num_actual)
    try:
        yield
    finally:
        _context = before


def attention(x, out):
    n = _context.num_actual  # HERE
    out[:n].copy_(torch.softmax(x[:n], -1))


class Engine:
    def __init__(self):
        torch.manual_seed(0)
        self.scheduled = 2
        self.x = torch.randn(8, 4, device=DEVICE)
        self.out = torch.zeros(8, 4, device=DEVICE)

    def step(self):
        self.out.zero_()
        with set_forward_context(self.scheduled):  # HERE
            attention(self.x, self.out)
        return self.out

    def schedule(self):
        self.scheduled = self.scheduled % 7 + 1


def make():
    e = Engine()
    return {"step": e.step, "vary": e.schedule, "reset": None}
