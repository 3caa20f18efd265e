"""Mixed precision: the loss scale grows after a number of clean iterations."""

from types import SimpleNamespace

import torch
import torch.nn.functional as F

BATCH, IN, OUT = 16, 12, 4
GROWTH_INTERVAL = 4


class ScaledTrainer:
    def __init__(self, seed=11):
        self.gen = torch.Generator().manual_seed(seed)
        self.w = (torch.randn(IN, OUT, generator=self.gen) / IN**0.5).requires_grad_()
        self.momentum = torch.zeros(IN, OUT)
        self.x = torch.zeros(BATCH, IN)
        self.y = torch.zeros(BATCH, OUT)
        self.scale = 2.0**8
        self.inv_scale = torch.tensor(1.0 / self.scale)
        self.found_inf = torch.zeros(())
        self.clean = 0

    def update_scale(self):
        """What GradScaler.update() does, on the host, once an iteration."""
        if bool(self.found_inf):
            self.scale *= 0.5
            self.clean = 0
        else:
            self.clean += 1
            if self.clean == GROWTH_INTERVAL:
                self.scale *= 2.0
                self.clean = 0
        self.inv_scale.fill_(1.0 / self.scale)

    def vary(self):
        self.update_scale()
        self.x.copy_(torch.randn(BATCH, IN, generator=self.gen))
        self.y.copy_(torch.randn(BATCH, OUT, generator=self.gen))

    def step(self):
        loss = F.mse_loss(self.x @ self.w, self.y)
        scaled = loss * self.scale
        (grad,) = torch.autograd.grad(scaled, self.w)
        grad = grad * self.inv_scale
        self.found_inf.copy_((~torch.isfinite(grad)).any())
        with torch.no_grad():
            keep = 1.0 - self.found_inf
            self.momentum.mul_(0.9).add_(torch.nan_to_num(grad) * keep)
            self.w.sub_(self.momentum, alpha=0.05)
        return loss.detach()


def make():
    trainer = ScaledTrainer()
    trainer.vary()
    return SimpleNamespace(step=trainer.step, vary=trainer.vary)
