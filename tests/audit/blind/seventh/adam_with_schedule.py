"""Hand-written Adam with decoupled weight decay and a cosine schedule.

Hyperparameters are declared on the class and assigned like plain numbers.
"""

import math

import torch
import torch.nn.functional as F

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Hyper:
    """A scalar hyperparameter of an optimiser instance."""

    def __init__(self, default):
        self.default = default

    def __set_name__(self, owner, name):
        self.slot = "_" + name

    def __get__(self, obj, owner=None):
        if obj is None:
            return self
        return self._cell(obj)

    def __set__(self, obj, value):
        self._cell(obj).fill_(float(value))

    def _cell(self, obj):
        cell = obj.__dict__.get(self.slot)
        if cell is None:
            cell = torch.full((), self.default, device=DEVICE)
            obj.__dict__[self.slot] = cell
        return cell


class AdamW:
    lr = Hyper(1e-2)
    weight_decay = Hyper(0.0)

    def __init__(self, params, betas=(0.9, 0.98), eps=1e-8, **hyper):
        self.params = list(params)
        self.betas = betas
        self.eps = eps
        self.t = torch.zeros((), device=DEVICE)
        self.m = [torch.zeros_like(p) for p in self.params]
        self.v = [torch.zeros_like(p) for p in self.params]
        self.applied = 0
        for name in ("lr", "weight_decay"):
            setattr(self, name, hyper.get(name, getattr(type(self), name).default))

    @torch.no_grad()
    def apply(self, grads):
        b1, b2 = self.betas
        self.t.add_(1)
        self.applied += 1
        c1 = 1 - b1**self.t
        c2 = 1 - b2**self.t
        for p, m, v, g in zip(self.params, self.m, self.v, grads):
            m.mul_(b1).add_(g, alpha=1 - b1)
            v.mul_(b2).addcmul_(g, g, value=1 - b2)
            p.mul_(1 - self.lr * self.weight_decay)
            p.sub_(self.lr * (m / c1) / ((v / c2).sqrt() + self.eps))


class Cosine:
    def __init__(self, opt, peak, total):
        self.opt, self.peak, self.total, self.n = opt, peak, total, 0

    def tick(self):
        self.n += 1
        phase = math.pi * min(1.0, self.n / self.total)
        self.opt.lr = 0.5 * self.peak * (1 + math.cos(phase))
        self.opt.weight_decay = 0.1 if self.n > 3 else 0.01


torch.manual_seed(111)
rng = torch.Generator(device=DEVICE).manual_seed(112)
model = torch.nn.Sequential(torch.nn.Linear(9, 20), torch.nn.GELU(), torch.nn.Linear(20, 4)).to(DEVICE)
x = torch.randn(28, 9, device=DEVICE, generator=rng)
y = torch.randint(0, 4, (28,), device=DEVICE, generator=rng)
optimizer = AdamW(model.parameters(), lr=0.05, weight_decay=0.01)
schedule = Cosine(optimizer, peak=0.05, total=8)
_start = [p.detach().clone() for p in model.parameters()]


def step():
    loss = F.cross_entropy(model(x), y)
    grads = torch.autograd.grad(loss, optimizer.params)
    optimizer.apply(grads)
    return loss.detach(), optimizer.params[0].detach()


def vary():
    x.normal_(generator=rng)
    y.random_(0, 4, generator=rng)
    schedule.tick()


@torch.no_grad()
def reset():
    for p, s, m, v in zip(optimizer.params, _start, optimizer.m, optimizer.v):
        p.copy_(s)
        m.zero_()
        v.zero_()
    optimizer.t.zero_()
    optimizer.applied = 0
