"""A walrus in a chained comparison decides whether the long-context correction runs."""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["lost-kernel", "frozen-host-value"]
SUBJECTS = ["length", "window"]


def make():
    torch.manual_seed(0)
    x = torch.randn(5, device=DEVICE)
    window = {"length": 4}

    def step():
        out = x * 2
        if 6 <= (n := window["length"]) < 100 and n % 2 == 0:  # HERE
            out = out.tanh()  # HERE
        return out

    def vary():
        window["length"] += 4

    return {"step": step, "vary": vary, "reset": None}
