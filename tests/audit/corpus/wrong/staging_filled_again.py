"""Pinned memory is filled again before the copy from it need have run: nobody waits for its event."""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["missing-edge"]
SUBJECTS = ["staging"]


def make():
    staging = graphs.host(torch.zeros(4), pinned=True)
    x, copied, numbers = torch.zeros(4, device=DEVICE), torch.cuda.Event(), iter(range(3, 40))

    def step():
        return x * 2

    def vary():
        staging.fill_(next(numbers))  # HERE
        x.copy_(staging, non_blocking=True)
        copied.record()

    return {"step": step, "vary": vary, "reset": None}
