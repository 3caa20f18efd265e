import math
from dataclasses import dataclass
from types import SimpleNamespace

import torch
import torch.nn.functional as F

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@dataclass
class LookaheadConfig:
    k: int = 2
    alpha: float = 0.5
    peak: float = 0.3
    horizon: int = 10
    momentum: float = 0.9


class Schedule:
    def __init__(self, config):
        self.config, self.epoch = config, 0

    def advance(self):
        self.epoch += 1
        progress = self.epoch / self.config.horizon
        return 0.5 * self.config.peak * (1 + math.cos(math.pi * progress))


class Lookahead:
    def __init__(self, params, config):
        self.params, self.config = params, config
        self.slow = [p.detach().clone() for p in params]
        self.momentum = [torch.zeros_like(p) for p in params]
        self.count = torch.zeros((), dtype=torch.long, device=DEVICE)
        self.lr = torch.full((), config.peak, device=DEVICE)
        self.calls = 0

    @torch.no_grad()
    def step(self, grads):
        self.calls += 1
        self.count.add_(1)
        is_sync = self.count % self.config.k == 0
        for p, slow, m, grad in zip(self.params, self.slow, self.momentum, grads, strict=True):
            m.mul_(self.config.momentum).add_(grad)
            p.sub_(self.lr * m)
            slow.copy_(torch.where(is_sync, slow + self.config.alpha * (p - slow), slow))
            p.copy_(torch.where(is_sync, slow, p))


class Trainer:
    def __init__(self, config):
        n = torch.arange(8, dtype=torch.float32)
        self.weight = torch.sin(n).view(4, 2).to(DEVICE).requires_grad_()
        self.optimizer, self.schedule = Lookahead([self.weight], config), Schedule(config)
        self.inputs = torch.ones(3, 4, device=DEVICE)
        self.history = []

    def train(self):
        loss = F.softplus(self.inputs @ self.weight).mean()
        self.optimizer.step(torch.autograd.grad(loss, [self.weight]))
        return loss.detach(), self.weight.detach()

    def feed(self):
        lr = self.schedule.advance()
        self.optimizer.lr.fill_(lr)
        self.history.append((self.optimizer.calls, lr))
        n = torch.arange(12, dtype=torch.float32).view(3, 4)
        self.inputs.copy_(torch.cos(n + self.schedule.epoch))


def make_engine():
    trainer = Trainer(LookaheadConfig())
    return SimpleNamespace(step=trainer.train, vary=trainer.feed)
