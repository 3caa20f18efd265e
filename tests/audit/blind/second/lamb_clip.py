from dataclasses import dataclass
from time import perf_counter

import torch
import torch.nn.functional as F

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@dataclass(frozen=True)
class LambConfig:
    lr: float = 0.05
    betas: tuple[float, float] = (0.9, 0.99)
    eps: float = 1e-6
    max_norm: float | None = 0.2
    decay: float = 0.01


class Lamb:
    def __init__(self, params, config):
        self.params, self.config = params, config
        self.m = [torch.zeros_like(p) for p in params]
        self.v = [torch.zeros_like(p) for p in params]
        self.powers = [torch.ones((), device=DEVICE) for _ in config.betas]

    def clip(self, grads):
        if self.config.max_norm is None:
            return grads
        norm = torch.stack([g.norm() for g in grads]).norm()
        factor = (self.config.max_norm / (norm + 1e-6)).clamp(max=1.0)
        return [g * factor for g in grads]

    @torch.no_grad()
    def step(self, grads):
        (b1, b2), config = self.config.betas, self.config
        for power, beta in zip(self.powers, config.betas, strict=True):
            power.mul_(beta)
        for p, g, m, v in zip(self.params, self.clip(grads), self.m, self.v, strict=True):
            m.lerp_(g, 1 - b1)
            v.lerp_(g.square(), 1 - b2)
            update = (m / (1 - self.powers[0])) / ((v / (1 - self.powers[1])).sqrt() + config.eps)
            update = update + config.decay * p
            trust = p.norm() / update.norm().clamp(min=config.eps)
            p.sub_(config.lr * trust * update)


class Trainer:
    def __init__(self):
        shapes = [(4, 5), (5, 2)]
        self.weights = [
            torch.sin(torch.arange(a * b, dtype=torch.float32)).view(a, b).to(DEVICE).requires_grad_()
            for a, b in shapes
        ]
        self.optimizer = Lamb(self.weights, LambConfig())
        self.x = torch.ones(3, 4, device=DEVICE)
        self.label = torch.zeros(3, dtype=torch.long, device=DEVICE)
        self.seconds, self.seen = [], 0

    def train(self):
        began = perf_counter()
        loss = F.cross_entropy(torch.tanh(self.x @ self.weights[0]) @ self.weights[1], self.label)
        self.optimizer.step(torch.autograd.grad(loss, self.weights))
        self.seconds.append(perf_counter() - began)
        return loss.detach()

    def feed(self):
        self.seen += 1
        self.x.copy_(torch.cos(torch.arange(12.0) * self.seen).view(3, 4))
        self.label.copy_((torch.arange(3) + self.seen) % 2)


trainer = Trainer()


def step():
    return trainer.train()


def vary():
    trainer.feed()
