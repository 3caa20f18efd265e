"""A tensor attribute next to the used ones is rebound; the step never touches it."""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = []
SUBJECTS = []


class Stage:
    def __init__(self):
        torch.manual_seed(0)
        self.x = torch.randn(4, device=DEVICE)
        self.last_logits = torch.zeros(4, device=DEVICE)
        self.draft = None

    def step(self):
        return self.x.sigmoid()


def make():
    s = Stage()

    def vary():
        s.last_logits = torch.randn(4, device=DEVICE)
        s.draft = [torch.ones(2, device=DEVICE)]
        s.x.add_(1)

    return {"step": s.step, "vary": vary, "reset": None}
