"""operator.attrgetter reads a nested attribute, in C."""

from operator import attrgetter
from types import SimpleNamespace

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["frozen-host-value"]
SUBJECTS = ["scale", "plan", "read_scale"]


read_scale = attrgetter("plan.scale")


def make():
    torch.manual_seed(0)
    runner = SimpleNamespace(plan=SimpleNamespace(scale=2.0), x=torch.randn(4, device=DEVICE))

    def step():
        return runner.x.mul(read_scale(runner))  # HERE

    def vary():
        runner.plan.scale += 1.0

    return {"step": step, "vary": vary, "reset": None}
