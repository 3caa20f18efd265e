"""Gradients for a quantile regressor with a smoothed pinball loss.

The kink of the loss is rounded off within a small width, which the driver narrows as the fit settles.
Quantile levels are an input: every request may ask for others.
"""

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
ROWS, FEATURES, LEVELS = 24, 5, 3


class Pinball(torch.autograd.Function):
    """Pinball loss whose slope is a ramp within `width` of zero."""

    width = 1.5

    @staticmethod
    def forward(ctx, predicted, target, levels):
        error = target - predicted
        ctx.save_for_backward(error, levels)
        return torch.maximum(levels * error, (levels - 1) * error).mean()

    @staticmethod
    def backward(ctx, upstream):
        error, levels = ctx.saved_tensors
        ramp = (error / Pinball.width).clamp(-0.5, 0.5)
        slope = -(levels - 0.5 + ramp)
        return upstream * slope / error.numel(), None, None


class Settling:
    """Narrows the rounding of a loss from request to request, down to a floor."""

    def __init__(self, loss, factor: float, floor: float):
        self.loss, self.factor, self.floor = loss, factor, floor

    def __call__(self) -> None:
        self.loss.width = max(self.floor, self.loss.width * self.factor)


rng = torch.Generator().manual_seed(5)
rows = torch.randn(ROWS, FEATURES, generator=rng).to(DEVICE)
target = torch.randn(ROWS, 1, generator=rng).to(DEVICE)
levels = torch.tensor([0.1, 0.5, 0.9], device=DEVICE)
weight = torch.randn(FEATURES, LEVELS, generator=rng).to(DEVICE).requires_grad_()
offset = torch.zeros(LEVELS, device=DEVICE, requires_grad=True)
settle = Settling(Pinball, 0.6, 0.05)


def step():
    predicted = rows @ weight + offset
    loss = Pinball.apply(predicted, target, levels)
    by_weight, by_offset = torch.autograd.grad(loss, (weight, offset))
    return {"loss": loss.detach(), "weight": by_weight, "offset": by_offset}


def vary():
    rows.copy_(torch.randn(ROWS, FEATURES, generator=rng))
    target.copy_(torch.randn(ROWS, 1, generator=rng))
    middle = 0.3 + 0.4 * torch.rand((), generator=rng).item()
    levels.copy_(torch.tensor([middle / 3, middle, (2 + middle) / 3]))
    with torch.no_grad():
        offset.add_(0.05)
    settle()
