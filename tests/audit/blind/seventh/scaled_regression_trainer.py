"""Mixed-precision style regression trainer with a home-grown dynamic loss scaler.

The scaler follows the usual policy: after a number of clean steps the scale
grows by a constant factor, after an overflow it backs off.
"""

import torch
import torch.nn.functional as F

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class LossScaler:
    """Dynamic loss scale, with the reciprocal kept on the device."""

    def __init__(self, init=256.0, growth=2.0, backoff=0.5, interval=2):
        self._scale = init
        self.growth = growth
        self.backoff = backoff
        self.interval = interval
        self.clean = 0
        self.reciprocal = torch.full((), 1.0 / init, device=DEVICE)

    @property
    def scale(self):
        return self._scale

    @scale.setter
    def scale(self, value):
        self._scale = float(value)
        self.reciprocal.fill_(1.0 / self._scale)

    def amplify(self, loss):
        return loss * self.scale

    def restore(self, grads):
        return [g * self.reciprocal for g in grads]

    def observe(self, overflow):
        """Host-side policy, run between two optimizer steps."""
        if overflow:
            self.scale = self.scale * self.backoff
            self.clean = 0
            return
        self.clean += 1
        if self.clean >= self.interval:
            self.scale = self.scale * self.growth
            self.clean = 0


class MomentumSGD:
    def __init__(self, params, lr=0.02, momentum=0.8):
        self.params = list(params)
        self.lr = lr
        self.momentum = momentum
        self.velocity = [torch.zeros_like(p) for p in self.params]

    @torch.no_grad()
    def apply(self, grads):
        for p, v, g in zip(self.params, self.velocity, grads):
            v.mul_(self.momentum).add_(g)
            p.add_(v, alpha=-self.lr)


class Trainer:
    def __init__(self, seed=11):
        self.rng = torch.Generator(device=DEVICE).manual_seed(seed)
        self.w1 = self._init(12, 16)
        self.w2 = self._init(16, 3)
        self.x = torch.randn(24, 12, device=DEVICE, generator=self.rng)
        self.y = torch.randn(24, 3, device=DEVICE, generator=self.rng)
        self.scaler = LossScaler()
        self.opt = MomentumSGD([self.w1, self.w2])
        self.initial = [self.w1.detach().clone(), self.w2.detach().clone()]

    def _init(self, rows, cols):
        w = torch.randn(rows, cols, device=DEVICE, generator=self.rng) / rows**0.5
        return w.requires_grad_(True)

    def next_batch(self):
        self.x.normal_(generator=self.rng)
        self.y.normal_(generator=self.rng)

    def train_step(self):
        hidden = torch.tanh(self.x @ self.w1)
        loss = F.mse_loss(hidden @ self.w2, self.y)
        grads = torch.autograd.grad(self.scaler.amplify(loss), self.opt.params)
        grads = self.scaler.restore(grads)
        self.opt.apply(grads)
        return loss.detach(), grads[0], grads[1]


trainer = Trainer()


def step():
    return trainer.train_step()


def vary():
    trainer.next_batch()
    trainer.scaler.observe(overflow=False)


@torch.no_grad()
def reset():
    for p, v, w in zip(trainer.opt.params, trainer.opt.velocity, trainer.initial):
        p.copy_(w)
        v.zero_()
