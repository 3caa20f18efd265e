"""A zero-dimensional host tensor is passed to the kernel by value."""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["frozen-host-value"]
SUBJECTS = ["scale_cpu", "item", "mul"]


class Quant:
    def __init__(self):
        torch.manual_seed(0)
        self.x = torch.randn(8, device=DEVICE)
        self.scale_cpu = graphs.host(torch.tensor(0.5))

    def dequantise(self):
        return self.x * self.scale_cpu  # HERE


def make():
    q = Quant()

    def vary():
        q.scale_cpu.add_(0.25)

    return {"step": q.dequantise, "vary": vary, "reset": None}
