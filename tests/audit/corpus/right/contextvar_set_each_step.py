"""A ContextVar is set to a fresh dict over the same tensors in every step, and reset."""

from contextvars import ContextVar

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = []
SUBJECTS = []


forward = ContextVar("forward")


def attend():
    meta = forward.get()
    return meta["scores"].masked_fill(~meta["mask"], -1e9).softmax(-1)


def make():
    torch.manual_seed(0)
    scores = torch.randn(2, 5, device=DEVICE)
    mask = torch.ones(2, 5, dtype=torch.bool, device=DEVICE)
    number = [0]

    def step():
        number[0] += 1
        token = forward.set({"scores": scores, "mask": mask, "step": number[0]})
        try:
            return attend()
        finally:
            forward.reset(token)

    def vary():
        mask[:, 3:].logical_not_()
        scores.add_(scores.flip(1))

    return {"step": step, "vary": vary, "reset": None}
