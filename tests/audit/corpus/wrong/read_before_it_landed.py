"""The host reads pinned memory that a copy from the device need not have written yet."""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["missing-edge"]
SUBJECTS = ["landed"]


def make():
    x, landed = torch.arange(4.0, device=DEVICE), graphs.host(torch.zeros(4), pinned=True)
    copied = torch.cuda.Event()

    def step():
        return x * 2

    def vary():
        landed.copy_(x, non_blocking=True)
        copied.record()
        x.add_(1 + float(landed.sum()))  # HERE

    return {"step": step, "vary": vary, "reset": None}
