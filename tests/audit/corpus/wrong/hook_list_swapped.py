"""A list of callbacks; one lambda is exchanged for another of the same shape."""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["frozen-host-value", "lost-kernel"]
SUBJECTS = ["hooks", "hook", "power"]


class Observed:
    def __init__(self):
        torch.manual_seed(0)
        self.x = torch.rand(5, device=DEVICE) + 0.5
        self.hooks = []

    def fire(self, value):
        for hook in self.hooks:  # HERE
            value = hook(value)  # HERE
        return value

    def step(self):
        return self.fire(self.x)  # HERE


def power(p):
    return lambda t: t.pow(p)  # HERE


def make():
    observed = Observed()
    observed.hooks += [lambda t: t + 1, power(2.0)]
    powers = [3.0, 0.5, 2.0]

    def vary():
        powers.append(powers.pop(0))
        observed.hooks[1] = power(powers[-1])

    return {"step": observed.step, "vary": vary, "reset": None}
