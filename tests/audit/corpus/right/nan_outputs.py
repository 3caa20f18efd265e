"""The result holds NaN and infinity by design: equal NaNs must not count as a divergence."""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = []
SUBJECTS = []


def make():
    x = torch.tensor([0.0, -1.0, 2.0], device=DEVICE)

    def step():
        return torch.log(x), x / x.sub(x)

    return {"step": step, "vary": lambda: x.mul_(2), "reset": None}
