"""A foreach op takes one Python number per tensor from a list."""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["frozen-host-value"]
SUBJECTS = ["alphas", "alpha"]


class Group:
    def __init__(self):
        torch.manual_seed(0)
        self.params = [torch.randn(n, device=DEVICE) for n in (2, 3, 4)]
        self.alphas = [1.0, 0.5, 2.0]

    def scaled(self):
        return torch._foreach_mul(self.params, self.alphas)  # HERE


def make():
    group = Group()

    def vary():
        group.alphas[1] += 1.0

    return {"step": group.scaled, "vary": vary, "reset": None}
