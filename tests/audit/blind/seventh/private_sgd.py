"""Differentially private SGD: per-example clipping and calibrated noise.

Per-example gradients come from vmap over grad.  An averaged copy of the
weights is kept with a warm-up of its decay, as in most published recipes;
the run below resumes from a checkpoint taken at update 4000.
"""

import torch
from torch.func import functional_call, grad, vmap

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
RESUMED_AT = 4000


class Classifier(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a = torch.nn.Linear(8, 12)
        self.b = torch.nn.Linear(12, 3)

    def forward(self, x):
        return self.b(torch.tanh(self.a(x)))


class Averager:
    """shadow <- d * shadow + (1 - d) * weight, d = min(decay, (1+n)/(10+n))."""

    def __init__(self, params, decay=0.95, updates=0):
        self.shadow = {k: p.detach().clone() for k, p in params.items()}
        self.decay = decay
        self.updates = updates

    def current_decay(self):
        return min(self.decay, (1 + self.updates) / (10 + self.updates))

    def track(self, params):
        self.updates += 1
        d = self.current_decay()
        for k, s in self.shadow.items():
            s.mul_(d).add_(params[k], alpha=1 - d)


class PrivateTrainer:
    def __init__(self, batch=12):
        torch.manual_seed(171)
        self.model = Classifier().to(DEVICE).requires_grad_(False)
        self.params = dict(self.model.named_parameters())
        self.rng = torch.Generator(device=DEVICE).manual_seed(172)
        self.x = torch.randn(batch, 8, device=DEVICE, generator=self.rng)
        self.y = torch.randn(batch, 3, device=DEVICE, generator=self.rng)
        self.noise = {k: torch.zeros_like(p) for k, p in self.params.items()}
        self.bound = torch.full((), 1.0, device=DEVICE)
        self.average = Averager(self.params, updates=RESUMED_AT)
        self.per_example = vmap(grad(self._loss), in_dims=(None, 0, 0))

    def _loss(self, params, x, y):
        out = functional_call(self.model, params, (x,))
        return (out - y).square().sum()

    def next_request(self):
        self.x.normal_(generator=self.rng)
        self.y.normal_(generator=self.rng)
        for n in self.noise.values():
            n.normal_(generator=self.rng)
        self.bound.mul_(0.93)

    def update(self):
        grads = self.per_example(self.params, self.x, self.y)
        sq = sum(g.flatten(1).square().sum(1) for g in grads.values())
        factor = (self.bound / sq.sqrt()).clamp(max=1.0)
        batch = self.x.shape[0]
        for k, p in self.params.items():
            clipped = torch.einsum("n,n...->...", factor, grads[k])
            p.sub_((clipped + 0.1 * self.bound * self.noise[k]) / batch, alpha=0.5)
        self.average.track(self.params)
        return factor, self.params["a.weight"], self.average.shadow["a.weight"]


trainer = PrivateTrainer()
_initial = {k: p.clone() for k, p in trainer.params.items()}


def step():
    return trainer.update()


def vary():
    trainer.next_request()


def reset():
    for k, p in trainer.params.items():
        p.copy_(_initial[k])
        trainer.average.shadow[k].copy_(_initial[k])
    trainer.average.updates = RESUMED_AT
