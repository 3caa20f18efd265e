"""Layers find the step's context in a ContextVar; its softmax scale is a Python float."""

import contextlib
import contextvars
from dataclasses import dataclass

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["frozen-host-value"]
SUBJECTS = ["attn_scale", "forward_context", "context", "scale"]


@dataclass(frozen=True)
class ForwardContext:
    batch_id: int
    attn_scale: float
    mask: torch.Tensor


_context = contextvars.ContextVar("forward_context")


def current():
    return _context.get()


class Layer:
    def __init__(self):
        self.w = torch.randn(8, 8, device=DEVICE)

    def __call__(self, x):
        context = current()
        scores = (x @ self.w @ x.T) * context.attn_scale  # HERE
        return torch.softmax(scores + context.mask, dim=-1) @ x


@contextlib.contextmanager
def override(**changes):
    """Set for good when left without error: the next batch starts from it."""
    from dataclasses import replace

    fresh = replace(current(), **changes)
    yield fresh
    _context.set(fresh)


def make():
    torch.manual_seed(0)
    mask = torch.full((4, 4), float("-inf"), device=DEVICE).triu(1)
    _context.set(ForwardContext(0, 0.35, mask))
    layers = [Layer(), Layer()]
    x = torch.randn(4, 8, device=DEVICE)

    def step():
        h = x
        for layer in layers:
            h = h + layer(h)
        return h

    def vary():
        with override(batch_id=current().batch_id + 1, attn_scale=current().attn_scale * 0.5):
            x.mul_(0.9)

    return {"step": step, "vary": vary, "reset": None}
