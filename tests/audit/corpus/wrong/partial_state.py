"""The step is a functools.partial over a namespace whose float changes."""

from functools import partial
from types import SimpleNamespace

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["frozen-host-value"]
SUBJECTS = ["eps"]


def forward(state, x, *, power):
    denominator = (x * x).mean(-1, keepdim=True) + state.eps  # HERE
    return x * denominator.pow(power)


def make():
    torch.manual_seed(0)
    state = SimpleNamespace(eps=0.1, name="rms")
    x = torch.randn(3, 8, device=DEVICE)

    def vary():
        state.eps += 1.0
        x.mul_(1.1)

    return {"step": partial(forward, state, x, power=-0.5), "vary": vary, "reset": None}
