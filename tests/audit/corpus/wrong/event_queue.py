"""An event loop handles whatever stands in a deque, which another batch fills differently."""

from collections import deque

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["frozen-host-value", "lost-kernel"]
SUBJECTS = ["queue", "events", "loop"]


class Loop:
    def __init__(self):
        torch.manual_seed(0)
        self.x = torch.randn(4, device=DEVICE)
        self.queue = deque([("scale", 2.0), ("shift", 1.0)])
        self.handlers = {"scale": self._scale, "shift": self._shift}

    def _scale(self, t, by):
        return t * by  # HERE

    def _shift(self, t, by):
        return t + by  # HERE

    def run_once(self):
        out = self.x
        for name, value in self.queue:  # HERE
            out = self.handlers[name](out, value)  # HERE
        return out


def make():
    loop = Loop()

    def vary():
        loop.queue.rotate(1)

    return {"step": loop.run_once, "vary": vary, "reset": None}
