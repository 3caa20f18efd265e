"""Pinned memory is made for each request, filled by the host, copied and kept."""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")


def make():
    x, kept, numbers = torch.zeros(4, device=DEVICE), [], iter(range(3, 40))
    copied = torch.cuda.Event()

    def vary():
        staging = graphs.host(torch.zeros(4), pinned=True)
        for i in range(4):
            staging[i] = next(numbers)
        x.copy_(staging, non_blocking=True)
        copied.record()
        kept.append(staging)

    return {"step": lambda: x * 2, "vary": vary, "reset": None}
