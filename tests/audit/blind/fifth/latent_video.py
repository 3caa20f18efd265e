"""Video diffusion: one denoising step per call with per-clip schedules and guidance."""

from dataclasses import dataclass

import torch
from torch import nn
from torch.func import functional_call

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
FRAMES, CH, STEPS = 4, 6, 10


@dataclass
class Clip:
    steps: int
    shift: float
    guidance: float
    at: int


class FlowSchedule:
    """Sigmas of the current clip, padded to STEPS + 1."""

    def __init__(self):
        self.sigmas = torch.zeros(STEPS + 1, device=DEVICE)
        self.cursor = torch.zeros(1, dtype=torch.long, device=DEVICE)
        self.num_steps = 0
        self.index = 0

    def set_clip(self, clip):
        t = torch.linspace(1.0, 0.0, clip.steps + 1)
        sigmas = clip.shift * t / (1 + (clip.shift - 1) * t)
        self.sigmas.zero_()
        self.sigmas[: clip.steps + 1].copy_(sigmas)
        self.num_steps, self.index = clip.steps, clip.at
        self.cursor.fill_(clip.at)

    def step(self, velocity, sample):
        now = self.sigmas.gather(0, self.cursor)
        then = self.sigmas.gather(0, self.cursor + 1)
        self.index = min(self.index + 1, self.num_steps)
        return sample + (then - now) * velocity


class Backbone(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Linear(2 * CH + 1, 16)
        self.out = nn.Linear(16, CH)

    def forward(self, sample, cond, sigma):
        sigma = sigma.expand(FRAMES, 1)
        return self.out(torch.tanh(self.inp(torch.cat([sample, cond, sigma], -1))))


class VideoPipeline:
    CLIPS = [Clip(10, 1.0, 5.0, 2), Clip(6, 3.0, 2.0, 0), Clip(8, 2.0, 7.5, 5), Clip(4, 5.0, 1.5, 3)]

    def __init__(self):
        torch.manual_seed(32)
        self.net = Backbone().to(DEVICE).eval()
        self.schedule = FlowSchedule()
        self.sample = torch.zeros(FRAMES, CH, device=DEVICE)
        self.cond = torch.zeros(FRAMES, CH, device=DEVICE)
        self.scale = torch.ones((), device=DEVICE)
        self.gen = torch.Generator().manual_seed(73)
        self.turn = 0
        self.start()

    def start(self):
        self.clip = self.CLIPS[self.turn % len(self.CLIPS)]
        self.turn += 1
        self.schedule.set_clip(self.clip)
        self.scale.fill_(self.clip.guidance)
        for buf in (self.sample, self.cond):
            buf.copy_(torch.randn(FRAMES, CH, generator=self.gen))

    def denoise(self):
        params = dict(self.net.named_parameters())
        sigma = self.schedule.sigmas.gather(0, self.schedule.cursor)
        run = lambda cond: functional_call(self.net, params, (self.sample, cond, sigma))
        base, full = run(torch.zeros_like(self.cond)), run(self.cond)
        velocity = base + self.scale * (full - base)
        return {"sample": self.schedule.step(velocity, self.sample), "sigma": sigma}


pipe = VideoPipeline()


@torch.no_grad()
def step():
    return pipe.denoise()


def vary():
    pipe.start()
