"""The loss scaler branches on whether all gradients are finite, a question to the device."""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["host-sync"]
SUBJECTS = ["isfinite", "all", "bool", "_local_scalar_dense", "is_nonzero"]


class LossScaler:
    def __init__(self):
        self.scale = torch.full((), 8.0, device=DEVICE)

    def unscale(self, grads):
        return [g / self.scale for g in grads]

    def finite(self, grads):
        return all(torch.isfinite(g).all() for g in grads)  # HERE


class Trainer:
    def __init__(self):
        torch.manual_seed(0)
        self.scaler = LossScaler()
        self.w = torch.randn(4, 2, device=DEVICE, requires_grad=True)
        self.x, self.y = torch.randn(5, 4, device=DEVICE), torch.randn(5, 2, device=DEVICE)

    def step(self):
        with torch.enable_grad():
            loss = (self.x @ self.w - self.y).square().mean() * self.scaler.scale
            grads = self.scaler.unscale(torch.autograd.grad(loss, [self.w]))
        with torch.no_grad():
            if self.scaler.finite(grads):  # HERE
                self.w.sub_(grads[0] * 0.1)
            else:
                self.scaler.scale.mul_(0.5)
        return self.w.detach()


def make():
    trainer = Trainer()
    return {"step": trainer.step, "vary": lambda: trainer.x.mul_(1.1), "reset": None}
