"""With steps in flight the caller reads a result when the next step has run."""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["overwritten-output"]
SUBJECTS = ["returned"]


def make():
    x = torch.ones(4, device=DEVICE)
    return {"step": lambda: x * 2, "vary": lambda: x.add_(1), "reset": None, "in_flight": 1}
