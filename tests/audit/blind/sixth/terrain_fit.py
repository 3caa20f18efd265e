"""Fits a plane with quadratic terms to soundings of the sea floor, one optimiser step per sweep.

The rate decays with the sweeps. Gradients are written down, as the model is linear.
"""

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SOUNDINGS, RATE = 16, 0.05


def terms(places: torch.Tensor) -> torch.Tensor:
    """Terms of the polynomial at some places."""
    x, y = places.unbind(1)
    return torch.stack([torch.ones_like(x), x, y, x * y, x * x, y * y], 1)


class Fit:
    """Coefficients and their optimiser."""

    def __init__(self) -> None:
        self.coefficients = torch.zeros(6, device=DEVICE, requires_grad=True)
        self.coefficients.grad = torch.zeros(6, device=DEVICE)
        self.optimizer = torch.optim.Rprop(
            [self.coefficients], lr=RATE, step_sizes=(1e-5, 1.0), capturable=DEVICE.type == "cuda"
        )
        self.schedule = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.7)

    @torch.no_grad()
    def sweep(self, places: torch.Tensor, depths: torch.Tensor) -> torch.Tensor:
        design = terms(places)
        residual = design @ self.coefficients - depths
        self.coefficients.grad.copy_(design.T @ residual / SOUNDINGS)
        self.optimizer.step()
        return residual.square().mean()

    @torch.no_grad()
    def forget(self) -> None:
        self.coefficients.zero_()
        for state in self.optimizer.state.values():
            state["step"].zero_()
            state["prev"].zero_()
            state["step_size"].fill_(RATE)


rng = torch.Generator().manual_seed(53)
truth = torch.randn(6, generator=rng).to(DEVICE)
places = torch.randn(SOUNDINGS, 2, generator=rng).to(DEVICE)
depths = torch.empty(SOUNDINGS, device=DEVICE)
depths.copy_(terms(places) @ truth)
fit = Fit()


def step():
    error = fit.sweep(places, depths)
    return {"error": error, "coefficients": fit.coefficients.detach() + 0}


def vary():
    places.copy_(torch.randn(SOUNDINGS, 2, generator=rng))
    depths.copy_(terms(places) @ truth)
    fit.schedule.step()


def reset():
    fit.forget()
