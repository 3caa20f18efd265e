"""Few-step DDIM sampler for a toy 2-D denoiser.

The sampler settings are an immutable dataclass; the coefficients derived from
them are memoised, since many requests share the same settings.
"""

import functools
from dataclasses import dataclass, replace

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@dataclass(frozen=True)
class SamplerConfig:
    steps: int = 6
    beta_min: float = 0.1
    beta_max: float = 8.0
    eta: float = 0.0


@functools.lru_cache(maxsize=32)
def coefficients(cfg):
    """(steps, 3) table: factor of x0, of the direction, and of fresh noise."""
    t = torch.linspace(1.0, 0.0, cfg.steps + 1, device=DEVICE)
    log_alpha = -(cfg.beta_min * t + 0.5 * (cfg.beta_max - cfg.beta_min) * t * t)
    alpha = log_alpha.exp()
    now, nxt = alpha[:-1], alpha[1:]
    sigma = cfg.eta * ((1 - nxt) / (1 - now)).sqrt() * (1 - now / nxt).clamp_min(0).sqrt()
    direction = (1 - nxt - sigma * sigma).clamp_min(0).sqrt()
    return torch.stack([now.sqrt(), (1 - now).sqrt(), nxt.sqrt(), direction, sigma], dim=1)


class Denoiser(torch.nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.inp = torch.nn.Linear(3, width)
        self.mid = torch.nn.Linear(width, width)
        self.out = torch.nn.Linear(width, 2)

    def forward(self, x, level):
        h = torch.cat([x, level.expand(x.shape[0], 1)], dim=1)
        h = torch.nn.functional.silu(self.inp(h))
        h = torch.nn.functional.silu(self.mid(h))
        return self.out(h)


class Sampler:
    def __init__(self, batch=16):
        torch.manual_seed(3)
        self.model = Denoiser().to(DEVICE).requires_grad_(False)
        self.rng = torch.Generator(device=DEVICE).manual_seed(5)
        self.cfg = SamplerConfig()
        self.start = torch.randn(batch, 2, device=DEVICE, generator=self.rng)
        self.noise = torch.randn(self.cfg.steps, batch, 2, device=DEVICE, generator=self.rng)
        coefficients(self.cfg)

    def configure(self, **changes):
        """Adopt new settings; the table is built here, off the hot path."""
        self.cfg = replace(self.cfg, **changes)
        coefficients(self.cfg)

    def new_seed(self):
        self.start.normal_(generator=self.rng)
        self.noise.normal_(generator=self.rng)

    def sample(self):
        table = coefficients(self.cfg)
        x = self.start
        for i in range(self.cfg.steps):
            a, s, a_next, d, sigma = table[i].unbind()
            eps = self.model(x, s)
            x0 = ((x - s * eps) / a).clamp(-3, 3)
            x = a_next * x0 + d * eps + sigma * self.noise[i]
        return x


sampler = Sampler()
_requests = 0


def step():
    with torch.no_grad():
        return sampler.sample()


def vary():
    """Next user: new seed; every other user asks for a more stochastic walk."""
    global _requests
    _requests += 1
    sampler.new_seed()
    if _requests % 2 == 0:
        sampler.configure(eta=min(1.0, sampler.cfg.eta + 0.4))
