"""A tensor subclass carries a Python scale that its __torch_function__ multiplies in."""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["frozen-host-value"]
SUBJECTS = ["scale", "weight", "_scale"]


class Scaled(torch.Tensor):
    scale = 1.0

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func is torch.matmul:
            a, w = args
            with torch._C.DisableTorchFunctionSubclass():
                return torch.matmul(a, w) * w.scale  # HERE
        return super().__torch_function__(func, types, args, kwargs or {})


def make():
    torch.manual_seed(0)
    weight = torch.randn(4, 2, device=DEVICE).as_subclass(Scaled)
    weight.scale = 0.5
    x = torch.randn(3, 4, device=DEVICE)

    def step():
        return torch.matmul(x, weight)  # HERE

    def vary():
        weight.scale = weight.scale + 0.25

    return {"step": step, "vary": vary, "reset": None}
