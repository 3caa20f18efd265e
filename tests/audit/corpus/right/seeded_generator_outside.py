"""A seeded generator fills a static noise buffer outside the step."""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = []
SUBJECTS = []


def make():
    generator = torch.Generator(device=DEVICE).manual_seed(7)
    logits = torch.linspace(-1, 1, 8, device=DEVICE)
    noise = torch.rand(8, generator=generator, device=DEVICE)

    def step():
        gumbel = -torch.log(-torch.log(noise.clamp(1e-6, 1 - 1e-6)))
        return torch.argmax(logits + gumbel)

    def vary():
        noise.copy_(torch.rand(8, generator=generator, device=DEVICE))

    return {"step": step, "vary": vary, "reset": None}
