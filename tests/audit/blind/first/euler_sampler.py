"""One denoising step of an Euler sampler for a small diffusion model."""

import math
from dataclasses import dataclass, field

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@dataclass
class ScheduleConfig:
    num_steps: int = 6
    sigma_min: float = 0.05
    sigma_max: float = 8.0
    rho: float = 7.0

    def sigmas(self) -> list[float]:
        low, high = self.sigma_min ** (1 / self.rho), self.sigma_max ** (1 / self.rho)
        ramp = [i / (self.num_steps - 1) for i in range(self.num_steps)]
        return [(high + r * (low - high)) ** self.rho for r in ramp] + [0.0]


@dataclass
class EulerScheduler:
    config: ScheduleConfig
    index: int = 0
    sigmas: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.sigmas = self.config.sigmas()

    @property
    def sigma(self) -> float:
        return self.sigmas[self.index]

    def advance(self) -> None:
        self.index = (self.index + 1) % self.config.num_steps

    def update(self, sample: torch.Tensor, denoised: torch.Tensor) -> torch.Tensor:
        derivative = (sample - denoised) / self.sigma
        return sample + derivative * (self.sigmas[self.index + 1] - self.sigma)


class Denoiser(torch.nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        mix = torch.sin(torch.arange(channels * channels, dtype=torch.float32) * 0.37)
        self.register_buffer("mix", mix.view(channels, channels).to(DEVICE) / math.sqrt(channels))

    def forward(self, x: torch.Tensor, log_sigma: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x @ self.mix + log_sigma[:, None])


class Pipeline:
    def __init__(self) -> None:
        self.scheduler = EulerScheduler(ScheduleConfig())
        self.unet = Denoiser(6)
        self.latents = torch.zeros(2, 6, device=DEVICE)
        self.log_sigma = torch.zeros(2, device=DEVICE)
        self.prepare()

    def prepare(self) -> None:
        start = torch.cos(torch.arange(12, dtype=torch.float32) + self.scheduler.index)
        self.latents.copy_(start.view(2, 6) * self.scheduler.sigma)
        self.log_sigma.fill_(math.log(self.scheduler.sigma) / 4)

    def denoise(self) -> torch.Tensor:
        denoised = self.unet(self.latents, self.log_sigma)
        return self.scheduler.update(self.latents, denoised)


pipeline = Pipeline()


def step():
    return pipeline.denoise()


def vary():
    pipeline.scheduler.advance()
    pipeline.prepare()


def reset():
    pipeline.scheduler.index = 0
    pipeline.prepare()
