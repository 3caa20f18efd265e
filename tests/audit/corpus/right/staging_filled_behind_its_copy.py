"""Pinned memory is filled again once the event behind the copy from it has been waited for."""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")


def make():
    staging = graphs.host(torch.zeros(4), pinned=True)
    x, copied, numbers = torch.zeros(4, device=DEVICE), torch.cuda.Event(), iter(range(3, 40))

    def step():
        return x * 2

    def vary():
        copied.synchronize()
        staging.fill_(next(numbers))
        x.copy_(staging, non_blocking=True)
        copied.record()

    return {"step": step, "vary": vary, "reset": None}
