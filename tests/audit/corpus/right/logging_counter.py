"""A counter, a log line and a formatted name change in each step; device work does not."""

import logging

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = []
SUBJECTS = []

log = logging.getLogger("corpus")


class Engine:
    def __init__(self):
        torch.manual_seed(0)
        self.steps = 0
        self.x = torch.randn(4, 8, device=DEVICE)

    def step(self):
        self.steps += 1
        log.debug("step %d, rows %d", self.steps, self.x.shape[0])
        if self.steps % 2:
            log.debug("odd")
        return self.x.softmax(-1)


def make():
    e = Engine()
    return {"step": e.step, "vary": lambda: e.x.add_(0.5), "reset": None}
