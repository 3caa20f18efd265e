"""A custom op of torch.library mutates a static buffer and another returns a fresh result."""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = []
SUBJECTS = []


@torch.library.custom_op("corpus::blend_", mutates_args=("out",))
def blend_(out: torch.Tensor, x: torch.Tensor, weight: float) -> None:
    out.mul_(1 - weight).add_(x, alpha=weight)


@blend_.register_fake
def _(out, x, weight):
    return None


@torch.library.custom_op("corpus::centered", mutates_args=())
def centered(x: torch.Tensor) -> torch.Tensor:
    return x - x.mean(-1, keepdim=True)


@centered.register_fake
def _(x):
    return torch.empty_like(x)


def make():
    torch.manual_seed(0)
    x, average = torch.randn(2, 4, device=DEVICE), torch.zeros(2, 4, device=DEVICE)

    def step():
        blend_(average, x, 0.25)
        return centered(average) + x

    return {"step": step, "vary": lambda: x.add_(x.flip(1)), "reset": None}
