"""Changing the prompt or the timesteps of a running stream broke the picture at random, while the first
setting worked. The first frame captures the one denoising step; the graph reads the prompt's embedding and
the timesteps by their addresses, and each live change allocated both anew, while the signature that decides
about another capture names neither. Repaired by keeping the buffers and copying into them.
"""

from itertools import count
from types import SimpleNamespace

import torch

from mrv2lab.graphs import capture

PROJECT = "librediffusion"
LINK = "https://github.com/jcelerier/librediffusion/pull/14"
MECHANISM = "moved-address"
CAUSE = "self.prompt_embeds"
LINE = "self.prompt_embeds = embeds.clone()"
EXECUTORS = ("emulated", "cuda")

PIXELS, DIM = 6, 4


class StreamPipeline:
    """One step of denoising a frame, captured when a signature is new."""

    def __init__(self, fixed: bool, device: torch.device):
        self.fixed, self.device = fixed, device
        self.backend = "cuda" if device.type == "cuda" else "emulated"
        self.latent = torch.zeros(PIXELS, device=device)
        self.controlnet_cond = torch.zeros(PIXELS, device=device)
        self.unet = torch.sin(torch.arange(DIM * PIXELS, device=device) * 1.0).view(DIM, PIXELS)
        self.prompt_embeds = torch.ones(DIM, device=device)
        self.sub_timesteps = torch.full((1,), 0.5, device=device)
        self.graph, self.signature = None, None

    def prepare_embeds(self, embeds: torch.Tensor) -> None:
        if self.fixed and embeds.shape == self.prompt_embeds.shape:
            self.prompt_embeds.copy_(embeds)
        else:
            self.prompt_embeds = embeds.clone()

    def prepare_scheduler(self, timestep: float) -> None:
        self.sub_timesteps.fill_(timestep)

    def capture_signature(self) -> tuple[int, ...]:
        return self.latent.data_ptr(), self.controlnet_cond.data_ptr(), self.unet.data_ptr()

    def predict_x0(self) -> torch.Tensor:
        noise = torch.tanh(self.prompt_embeds @ self.unet + self.latent)
        return self.latent - self.sub_timesteps * noise + self.controlnet_cond

    def frame(self) -> torch.Tensor:
        if self.signature != (signature := self.capture_signature()):
            self.predict_x0()
            self.graph = capture(self.predict_x0, backend=self.backend)
            self.signature = signature
        self.graph.replay()
        return self.graph.outputs


def program(fixed: bool, device: torch.device) -> SimpleNamespace:
    pipeline, frames = StreamPipeline(fixed, device), count(1)

    def vary() -> None:
        n = next(frames)
        pipeline.latent.copy_(torch.cos(torch.arange(PIXELS) * n * 1.0))
        if n % 2:  # somebody types
            pipeline.prepare_embeds(torch.full((DIM,), 0.3 * n, device=device))
            pipeline.prepare_scheduler(0.5 + 0.1 * n)

    return SimpleNamespace(
        step=pipeline.frame,
        eager=pipeline.predict_x0,
        own_graphs=True,
        vary=vary,
        requests=4,
        pipeline=pipeline,
    )
