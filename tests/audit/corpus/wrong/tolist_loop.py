"""Segment borders come from tolist() of a host tensor."""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["frozen-host-value"]
SUBJECTS = ["lens_cpu", "tolist"]


def make():
    torch.manual_seed(0)
    lens_cpu = graphs.host(torch.tensor([2, 3, 3]))
    x = torch.randn(8, 4, device=DEVICE)
    out = torch.zeros(3, 4, device=DEVICE)

    def step():
        start = 0
        for i, n in enumerate(lens_cpu.tolist()):  # HERE
            out[i].copy_(x[start : start + n].mean(0))
            start += n

    def vary():
        lens_cpu.copy_(torch.roll(lens_cpu, 1))
        x.add_(0.2)

    return {"step": step, "vary": vary, "reset": None}
