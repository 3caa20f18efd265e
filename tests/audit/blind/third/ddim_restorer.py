"""Restores audio spectrogram patches with a few DDIM steps under classifier-free guidance."""

import math
from collections import deque

import torch
from torch import nn

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def cosine_levels(steps):
    """Pairs of cumulative signal levels, from noise to clean."""
    level = lambda u: math.cos((u + 0.02) / 1.02 * math.pi / 2) ** 2  # noqa: E731
    for i in reversed(range(steps)):
        yield level((i + 1) / steps * 0.95), level(i / steps * 0.95)


class Denoiser(nn.Module):
    def __init__(self, bins=10, width=20, cond=5):
        super().__init__()
        self.enter = nn.Linear(bins + 1, width)
        self.context = nn.Linear(cond, width, bias=False)
        self.leave = nn.Linear(width, bins)

    def forward(self, x, level, context):
        hint = torch.full_like(x[..., :1], level)
        return self.leave(torch.tanh(self.enter(torch.cat([x, hint], dim=-1)) + self.context(context)))


class Restorer:
    def __init__(self, batch=6, bins=10, steps=5):
        torch.manual_seed(14)
        self.steps = steps
        self.net = Denoiser(bins).to(DEVICE).requires_grad_(False)
        self.start = torch.randn(batch, bins, device=DEVICE)
        self.context = torch.randn(batch, 5, device=DEVICE)
        self.nothing = torch.zeros(batch, 5, device=DEVICE)
        self._scale = torch.full((), 2.0, device=DEVICE)

    @property
    def guidance(self):
        return self._scale

    @guidance.setter
    def guidance(self, value):
        self._scale.fill_(float(value))

    def predict(self, x, level):
        with_context = self.net(x, level, self.context)
        without = self.net(x, level, self.nothing)
        return without + self.guidance * (with_context - without)

    def restore(self):
        x = self.start
        recent = deque(maxlen=2)
        for i, (now, after) in enumerate(cosine_levels(self.steps)):
            recent.append(self.predict(x, now))
            noise = recent[-1] if i == 0 else 1.5 * recent[-1] - 0.5 * recent[0]
            clean = (x - math.sqrt(1 - now) * noise) / math.sqrt(now)
            x = math.sqrt(after) * clean.clamp(-3, 3) + math.sqrt(1 - after) * noise
        return x


restorer = Restorer()
served = 0


def step():
    return restorer.restore()


def vary():
    global served
    served += 1
    g = torch.Generator().manual_seed(served)
    restorer.start.copy_(torch.randn(restorer.start.shape, generator=g))
    restorer.context.copy_(torch.randn(restorer.context.shape, generator=g))
    restorer.guidance = 1.0 + 0.7 * (served % 4)
