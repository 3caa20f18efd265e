"""The step's function is compiled anew from the same source before every step."""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = []
SUBJECTS = []


SOURCE = "def body(x, w):\n    y = x @ w\n    return y.relu()\n"


def compiled():
    namespace = {}
    exec(SOURCE, namespace)
    return namespace["body"]


class Jit:
    def __init__(self):
        torch.manual_seed(0)
        self.x, self.w = torch.randn(2, 3, device=DEVICE), torch.randn(3, 2, device=DEVICE)
        self.body = compiled()

    def step(self):
        return self.body(self.x, self.w)


def make():
    jit = Jit()

    def vary():
        jit.body = compiled()
        jit.x.neg_()

    return {"step": jit.step, "vary": vary, "reset": None}
