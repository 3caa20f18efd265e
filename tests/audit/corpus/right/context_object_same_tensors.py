"""The ContextVar holds a new context for every batch: another id and deadline, the same tensors."""

import contextvars
from types import SimpleNamespace

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = []
SUBJECTS = []


_forward = contextvars.ContextVar("forward")


def set_forward_context(batch_id, tensors):
    _forward.set(SimpleNamespace(batch_id=batch_id, deadline=1000.0 + batch_id, seen=set(), **tensors))


class Layer:
    def __init__(self, name):
        self.name = name
        self.w = torch.randn(6, 6, device=DEVICE)

    def __call__(self, x):
        context = _forward.get()
        if context.deadline < 0:
            raise TimeoutError(self.name)
        context.seen.add((context.batch_id, self.name))
        keep = context.keep.unsqueeze(-1)
        return torch.where(keep, x + torch.sigmoid(x @ self.w), x)


def make():
    torch.manual_seed(0)
    tensors = {"keep": torch.tensor([True, False, True, True], device=DEVICE)}
    x = torch.randn(4, 6, device=DEVICE)
    layers = [Layer(f"layer{i}") for i in range(3)]
    batch_id = 0
    set_forward_context(batch_id, tensors)

    def step():
        h = x
        for layer in layers:
            h = layer(h)
        return h

    def vary():
        nonlocal batch_id
        batch_id += 1
        tensors["keep"].logical_not_()
        x.mul_(1.2)
        set_forward_context(batch_id, tensors)

    return {"step": step, "vary": vary, "reset": None}
