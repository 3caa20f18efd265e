"""The step takes its options from a mutable default argument."""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["frozen-host-value"]
SUBJECTS = ["scale", "opts"]


def make():
    torch.manual_seed(0)
    x = torch.randn(8, device=DEVICE)

    def step(opts={"scale": 1.0, "bias": 0.25}):  # noqa: B006
        return x * opts["scale"] + opts["bias"]  # HERE

    def vary():
        step.__defaults__[0]["scale"] += 1.0

    return {"step": step, "vary": vary, "reset": None}
