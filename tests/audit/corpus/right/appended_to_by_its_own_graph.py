"""An engine that captures when it is first called; its graph appends to a KV cache at a position on the
device, and moves that on.
"""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")


class Engine:
    def __init__(self):
        torch.manual_seed(0)
        self.kv, self.x = torch.zeros(64, 4, device=DEVICE), torch.randn(1, 4, device=DEVICE)
        self.pos = torch.zeros(1, dtype=torch.long, device=DEVICE)
        self.graph = None

    def forward(self):
        self.kv.index_copy_(0, self.pos, self.x)
        self.pos.add_(1)
        return self.kv.sum(0) * self.pos

    def step(self):
        if self.graph is None:
            self.forward()
            self.graph = graphs.capture(self.forward)
        self.graph.replay()
        return self.graph.outputs


def make():
    engine = Engine()
    return {"step": engine.step, "vary": lambda: engine.x.mul_(-0.7)}
