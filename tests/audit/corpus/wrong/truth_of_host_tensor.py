"""The truth value of a host tensor picks an operand; both branches launch the same op."""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["frozen-host-value"]
SUBJECTS = ["greedy_cpu", "bool"]


def make():
    torch.manual_seed(0)
    greedy_cpu = graphs.host(torch.zeros(1, dtype=torch.bool))
    x = torch.randn(4, device=DEVICE)
    hot = torch.full((4,), 5.0, device=DEVICE)
    cold = torch.full((4,), 0.1, device=DEVICE)

    def step():
        if greedy_cpu:  # HERE
            return x * cold
        return x * hot

    def vary():
        greedy_cpu.fill_(True)
        x.add_(1.0)

    return {"step": step, "vary": vary, "reset": None}
