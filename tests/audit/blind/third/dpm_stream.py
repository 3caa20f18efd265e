"""A streaming latent upscaler: one solver step per tick, following a schedule of noise levels."""

from typing import NamedTuple

import torch
from torch import nn

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Stage(NamedTuple):
    sigma: float
    sigma_next: float
    order: int
    fresh: bool


def karras(n, low=0.05, high=8.0, rho=7.0):
    ramp = [i / (n - 1) for i in range(n)]
    return [(high ** (1 / rho) + r * (low ** (1 / rho) - high ** (1 / rho))) ** rho for r in ramp]


def schedule(n=9, warm=2):
    """Stages of one image after the other; the multistep rule needs a few single steps first."""
    sigmas = karras(n)
    while True:
        for i, (now, after) in enumerate(zip(sigmas, sigmas[1:])):
            yield Stage(now, after, 1 if i < warm else 2, i == 0)


class Denoiser(nn.Module):
    def __init__(self, channels=4):
        super().__init__()
        self.inner = nn.Conv2d(channels, 12, 3, padding=1)
        self.outer = nn.Conv2d(12, channels, 3, padding=1)

    def forward(self, x, sigma):
        scale = torch.rsqrt(sigma * sigma + 1.0)
        return self.outer(torch.tanh(self.inner(x * scale))) + x * scale * scale


def single(x, denoised, previous, sigma, sigma_next):
    ratio = sigma_next / sigma
    return ratio * x + (1 - ratio) * denoised


def multistep(x, denoised, previous, sigma, sigma_next):
    ratio = sigma_next / sigma
    extrapolated = 1.5 * denoised - 0.5 * previous
    return ratio * x + (1 - ratio) * extrapolated


class StreamSampler:
    updates = {1: single, 2: multistep}

    def __init__(self):
        torch.manual_seed(11)
        self.net = Denoiser().to(DEVICE).requires_grad_(False)
        self.noise = torch.randn(2, 4, 8, 8, device=DEVICE) * 8.0
        self.latent = self.noise.clone()
        self.previous = torch.zeros_like(self.latent)
        self.sigma = torch.zeros((), device=DEVICE)
        self.sigma_next = torch.zeros((), device=DEVICE)
        self.stages = schedule()
        self.advance()

    def advance(self):
        self.stage = next(self.stages)
        self.sigma.fill_(self.stage.sigma)
        self.sigma_next.fill_(self.stage.sigma_next)
        if self.stage.fresh:
            self.latent.copy_(self.noise)

    def tick(self):
        denoised = self.net(self.latent, self.sigma)
        update = self.updates[self.stage.order]
        self.latent.copy_(update(self.latent, denoised, self.previous, self.sigma, self.sigma_next))
        self.previous.copy_(denoised)
        return self.latent.clone()


sampler = StreamSampler()
step = sampler.tick
vary = sampler.advance


def reset():
    sampler.latent.copy_(sampler.noise)
    sampler.previous.zero_()
