"""functools.partial over static tensors and constants."""

from functools import partial

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = []
SUBJECTS = []


def mix(a, b, *, alpha, out):
    torch.lerp(a, b, alpha, out=out)


def make():
    torch.manual_seed(0)
    a, b, out = (torch.randn(5, device=DEVICE) for _ in range(3))
    return {"step": partial(mix, a, b, alpha=0.25, out=out), "vary": lambda: a.sub_(b), "reset": None}
