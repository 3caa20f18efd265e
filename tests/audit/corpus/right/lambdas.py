"""A chain of lambdas kept in a list; another list of hooks is rebound without effect."""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = []
SUBJECTS = []


def make():
    torch.manual_seed(0)
    x = torch.randn(6, device=DEVICE)
    ops = [lambda t: t + 1, lambda t: t * t, lambda t: t.flip(0)]
    hooks = {"after": [lambda t: None]}

    def step():
        h = x
        for op in ops:
            h = op(h)
        for hook in hooks["after"]:
            hook(h)
        return h

    def vary():
        x.mul_(0.5)
        hooks["after"] = [lambda t: None, lambda t: None]

    return {"step": step, "vary": vary, "reset": None}
