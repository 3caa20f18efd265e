"""Gumbel sampling with noise that the host draws into a static buffer before each step; the generator's
state moves on.
"""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = []
SUBJECTS = []


class GumbelSampler:
    def __init__(self, batch=2, vocab=10, seed=3):
        torch.manual_seed(0)
        self.generator = torch.Generator().manual_seed(seed)
        self.logits = torch.randn(batch, vocab, device=DEVICE)
        self.temperature = torch.ones(batch, 1, device=DEVICE)
        self.noise = torch.zeros(batch, vocab, device=DEVICE)
        self.tokens = torch.zeros(batch, dtype=torch.long, device=DEVICE)
        self.drawn = 0
        self.draw()

    def draw(self):
        uniform = torch.rand(self.noise.shape, generator=self.generator).clamp_(1e-6, 1 - 1e-6)
        self.noise.copy_(-torch.log(-torch.log(uniform)))
        self.drawn += 1

    def step(self):
        if self.drawn == 0:
            raise RuntimeError("draw() first")
        perturbed = self.logits / self.temperature + self.noise
        torch.argmax(perturbed, dim=-1, out=self.tokens)
        logprobs = self.logits.log_softmax(-1)
        return self.tokens, logprobs.gather(1, self.tokens.unsqueeze(1))


def make():
    sampler = GumbelSampler()

    def vary():
        sampler.draw()
        sampler.temperature.mul_(0.9)

    return {"step": sampler.step, "vary": vary, "reset": None}
