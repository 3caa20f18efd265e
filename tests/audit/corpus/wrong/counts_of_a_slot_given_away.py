"""A batch slot goes to another request: the engine that runs eagerly clears its counts of tokens first, and
the one with a graph of its own, made when it is first called, does not. The old request's penalties go on.
"""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["stale-input"]
SUBJECTS = ["counts"]


class Engine:
    def __init__(self):
        torch.manual_seed(3)
        self.counts, self.logits = torch.zeros(2, 8, device=DEVICE), torch.randn(2, 8, device=DEVICE)
        self.slots, self.slot, self.graph = iter([0, 1, 0, 1, 1, 0, 0, 1, 0, 1, 0] * 9), 0, None

    def forward(self):
        logits = self.logits - 2 * self.counts  # HERE
        tokens = logits.argmax(-1, keepdim=True)
        self.counts.scatter_add_(1, tokens, torch.ones(2, 1, device=DEVICE))
        return tokens

    def vary(self):
        self.slot = next(self.slots)
        self.logits.copy_(torch.randn(2, 8))

    def step(self):
        if self.graph is None:
            self.forward()
            self.counts.zero_()
            self.graph = graphs.capture(self.forward)
        self.graph.replay()
        return self.graph.outputs

    def eager(self):
        self.counts[self.slot] = 0
        return self.forward()


def make():
    engine = Engine()
    return {"step": engine.step, "vary": engine.vary, "twin": Engine}
