"""The host reads pinned memory once the event behind the copy has been waited for."""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")


def make():
    x, landed = torch.arange(4.0, device=DEVICE), graphs.host(torch.zeros(4), pinned=True)
    copied = torch.cuda.Event()

    def step():
        return x * 2

    def vary():
        landed.copy_(x, non_blocking=True)
        copied.record()
        copied.synchronize()
        x.add_(1 + float(landed.sum()))

    return {"step": step, "vary": vary, "reset": None}
