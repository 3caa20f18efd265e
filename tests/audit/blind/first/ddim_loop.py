"""DDIM with classifier-free guidance: the schedule is a table, and the step knows where it is in it."""

import math
from dataclasses import dataclass
from types import SimpleNamespace

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@dataclass(frozen=True)
class DDIMConfig:
    num_steps: int = 10
    guidance_scale: float = 2.5
    channels: int = 5

    def alphas(self) -> list[float]:
        return [
            math.cos((1 - (i + 1) / (self.num_steps + 1)) * math.pi / 2) ** 2
            for i in range(self.num_steps + 1)
        ]


class Scheduler:
    def __init__(self, config: DDIMConfig) -> None:
        self.alphas = torch.tensor(config.alphas(), device=DEVICE)
        self.index = torch.zeros(1, dtype=torch.int64, device=DEVICE)

    def step(self, noise: torch.Tensor, sample: torch.Tensor) -> torch.Tensor:
        now, then = self.alphas[self.index], self.alphas[self.index + 1]
        clean = (sample - (1 - now).sqrt() * noise) / now.sqrt()
        return then.sqrt() * clean + (1 - then).sqrt() * noise


class Pipeline:
    def __init__(self, config: DDIMConfig) -> None:
        self.config, self.scheduler = config, Scheduler(config)
        size = config.channels
        self.mix = torch.sin(torch.arange(size * size, device=DEVICE) * 0.7).view(size, size) / size
        self.sample = torch.zeros(2, size, device=DEVICE)
        self.prompt = torch.zeros(2, size, device=DEVICE)
        self.steps_left = 0
        self.begin()

    def begin(self) -> None:
        self.steps_left = self.config.num_steps
        self.scheduler.index.zero_()
        count = self.sample.numel()
        self.sample.copy_(torch.cos(torch.arange(count, dtype=torch.float32)).view_as(self.sample))
        self.edit_prompt()

    def edit_prompt(self) -> None:
        values = torch.sin(torch.arange(self.prompt.numel()) * 0.3 + self.steps_left)
        self.prompt.copy_(values.view_as(self.prompt))

    def tick(self) -> None:
        """Between two steps: the progress bar, and the prompt of a user who goes on typing."""
        self.steps_left -= 1
        self.edit_prompt()

    def denoise(self) -> torch.Tensor:
        both = torch.cat([self.sample, self.sample])
        context = torch.cat([torch.zeros_like(self.prompt), self.prompt])
        plain, guided = torch.tanh(both @ self.mix + context).chunk(2)
        noise = plain + self.config.guidance_scale * (guided - plain)
        self.sample.copy_(self.scheduler.step(noise, self.sample))
        self.scheduler.index.add_(1).remainder_(self.config.num_steps)
        return self.sample


def make_engine():
    pipeline = Pipeline(DDIMConfig())
    return SimpleNamespace(step=pipeline.denoise, vary=pipeline.tick, reset=pipeline.begin)


_engine = make_engine()
step, vary, reset = _engine.step, _engine.vary, _engine.reset
