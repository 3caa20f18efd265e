"""A request that asks for log-probabilities silently sends the whole step down the eager path."""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["silent-eager"]
SUBJECTS = ["step", "execute"]


class Engine:
    def __init__(self):
        torch.manual_seed(0)
        self.x = torch.randn(4, 8, device=DEVICE)
        self.logits = torch.zeros(4, 8, device=DEVICE)
        self.want_logprobs = False
        self.graph = None

    def forward(self):
        self.logits.copy_(torch.tanh(self.x) * 3)

    def capture(self):
        self.forward()
        self.graph = graphs.capture(self.forward)

    def step(self):
        if self.graph is not None and not self.want_logprobs:
            self.graph.replay()
        else:
            self.forward()
        return self.logits


def make():
    e = Engine()
    e.capture()

    def vary():
        e.want_logprobs = True
        e.x.add_(0.25)

    return {"step": e.step, "vary": vary, "reset": None}
