"""A tensor subclass object is made anew around the same memory before every step."""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = []
SUBJECTS = []


class Tagged(torch.Tensor):
    tag = "none"

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))


class Batch:
    def __init__(self):
        torch.manual_seed(0)
        self.base = torch.randn(3, 4, device=DEVICE)
        self.number = 0
        self.wrap()

    def wrap(self):
        self.number += 1
        self.x = self.base.view(4, 3).as_subclass(Tagged)
        self.x.tag = f"batch {self.number}"

    def __call__(self):
        return self.x.t() @ self.x


def make():
    batch = Batch()

    def vary():
        batch.base.add_(1)
        batch.wrap()

    return {"step": batch, "vary": vary, "reset": None}
