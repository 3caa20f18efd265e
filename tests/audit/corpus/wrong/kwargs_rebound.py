"""A keyword argument's tensor is replaced; the positional one is filled in place."""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["moved-address"]
SUBJECTS = ["bias", "kwargs"]


def model(x, *, weight, bias):
    return torch.addmm(bias, x, weight)  # HERE


def make():
    torch.manual_seed(0)
    x = torch.randn(2, 4, device=DEVICE)
    kwargs = {"weight": torch.randn(4, 4, device=DEVICE), "bias": torch.randn(4, device=DEVICE)}

    def vary():
        x.add_(1)
        kwargs["bias"] = kwargs["bias"] + 1

    step = lambda: model(x, **kwargs)  # noqa: E731  # HERE
    return {"step": step, "vary": vary, "reset": None}
