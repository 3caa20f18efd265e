"""Euler sampler of a latent diffusion pipeline with classifier-free guidance."""

from types import SimpleNamespace

import torch

BATCH, CHANNELS, PROMPT, MAX_STEPS = 2, 8, 6, 12


class EulerScheduler:
    def __init__(self):
        self.sigmas = torch.zeros(MAX_STEPS + 1)
        self.num_steps = 0

    def set_timesteps(self, n):
        ramp = torch.linspace(1, 0, n)
        table = (0.03 ** (1 / 7) + ramp * (8 ** (1 / 7) - 0.03 ** (1 / 7))) ** 7
        self.sigmas.zero_()  # behind the last step sigma is zero
        self.sigmas[:n].copy_(table)
        self.num_steps = n


class Pipeline:
    def __init__(self, seed=43):
        g = self.gen = torch.Generator().manual_seed(seed)
        self.w_x = torch.randn(CHANNELS, CHANNELS, generator=g) / CHANNELS**0.5
        self.w_c = torch.randn(PROMPT, CHANNELS, generator=g) / PROMPT**0.5
        self.scheduler = EulerScheduler()
        self.latents = torch.zeros(BATCH, CHANNELS)
        self.cond = torch.zeros(BATCH, PROMPT)
        self.uncond = torch.randn(BATCH, PROMPT, generator=g)
        self.scale = torch.ones(())
        self.index = torch.zeros(1, dtype=torch.long)
        self.guidance_scale, self.host_index = 1.0, 0
        self.requests = [(6, 0.0), (4, 7.5), (8, 0.5), (5, 3.0)]
        self.started = 0
        self.start()

    @property
    def do_classifier_free_guidance(self):
        # a scale of one or less turns guidance off, as in the paper
        return self.guidance_scale > 1.0

    def start(self):
        steps, self.guidance_scale = self.requests[self.started % len(self.requests)]
        self.started += 1
        self.scheduler.set_timesteps(steps)
        self.scale.fill_(self.guidance_scale)
        self.cond.copy_(torch.randn(BATCH, PROMPT, generator=self.gen))
        self.latents.copy_(torch.randn(BATCH, CHANNELS, generator=self.gen) * 8)
        self.host_index = 0
        self.index.zero_()

    def vary(self):
        """The next denoising step, or the next request after two of them."""
        self.host_index += 1
        if self.host_index >= 2:
            self.start()
        else:
            self.index.fill_(self.host_index)

    def denoise(self, x, prompt, sigma):
        scaled = x / (sigma**2 + 1).sqrt()
        return torch.tanh(scaled @ self.w_x + prompt @ self.w_c)

    def step(self):
        sigma = self.scheduler.sigmas[self.index]
        after = self.scheduler.sigmas[self.index + 1]
        eps = self.denoise(self.latents, self.cond, sigma)
        base = self.denoise(self.latents, self.uncond, sigma)
        guided = base + self.scale * (eps - base)
        eps = torch.where(self.scale > 1.0, guided, eps)
        self.latents.add_((after - sigma) * eps)
        return self.latents.clone()


def make():
    pipeline = Pipeline()
    return SimpleNamespace(step=pipeline.step, vary=pipeline.vary)
