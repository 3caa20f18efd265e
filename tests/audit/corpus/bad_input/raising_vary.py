"""vary() raises."""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["AuditError"]
SUBJECTS = ["KeyError", "next_batch", "vary"]


def make():
    x = torch.ones(4, device=DEVICE)
    queue = {}

    def vary():
        x.copy_(queue["next_batch"])  # HERE

    return {"step": lambda: x * 2, "vary": vary, "reset": None}
