"""Whoever changed the timesteps of a running stream got corrupted frames until all buffers were made anew.
Such a change only prepares the scheduler again. Its coefficients are passed to kernels by value, and so stay
in the graph as they were, while the timesteps are a buffer and do change; and what decides whether to capture
again looks at addresses of buffers alone. Repaired by dropping the graph with each update of the scheduler.
"""

from types import SimpleNamespace

import torch

from mrv2lab.graphs import capture

PROJECT = "librediffusion"
LINK = "https://github.com/jcelerier/librediffusion/pull/20"
MECHANISM = "frozen-host-value"
CAUSE = "self.coeffs"
LINE = "alpha, beta, c_skip, c_out = self.coeffs"
EXECUTORS = ("emulated", "cuda")

LATENT, TRAIN_STEPS, SIGMA_DATA = 6, 1000, 0.5


class StreamDiffusionPipeline:
    """One denoising step of a consistency model for each frame."""

    def __init__(self, fixed: bool, device: torch.device):
        self.fixed = fixed
        self.backend = "cuda" if device.type == "cuda" else "emulated"
        self.sub_timesteps = torch.zeros(1, device=device)
        self.x_t = torch.zeros(LATENT, device=device)
        self.embedding = torch.linspace(-1, 1, LATENT, device=device)
        self.graph = self.signature = None
        self.prepare_scheduler([600])
        self.update_input(torch.ones(LATENT))

    def prepare_scheduler(self, timesteps: list[int]) -> None:
        self.sub_timesteps.copy_(torch.tensor(timesteps, dtype=torch.float32))
        alpha = 1 - 0.8 * timesteps[0] / TRAIN_STEPS
        scaled = timesteps[0] / 100
        c_skip = SIGMA_DATA**2 / (scaled**2 + SIGMA_DATA**2)
        self.coeffs = alpha, (1 - alpha**2) ** 0.5, c_skip, 1 - c_skip
        if self.fixed:
            self.graph = None

    def update_input(self, frame: torch.Tensor) -> None:
        self.x_t.copy_(frame)

    def unet(self) -> torch.Tensor:
        return torch.sin(self.x_t + self.embedding * self.sub_timesteps / TRAIN_STEPS)

    def predict_x0(self) -> torch.Tensor:
        alpha, beta, c_skip, c_out = self.coeffs
        denoised = (self.x_t - beta * self.unet()) / alpha
        return c_out * denoised + c_skip * self.x_t

    def capture_signature(self) -> tuple[int, ...]:
        return tuple(buffer.data_ptr() for buffer in (self.sub_timesteps, self.x_t, self.embedding))

    def frame(self) -> torch.Tensor:
        if self.graph is None or self.signature != self.capture_signature():
            self.predict_x0()
            self.graph = capture(self.predict_x0, backend=self.backend)
            self.signature = self.capture_signature()
        self.graph.replay()
        return self.graph.outputs


def program(fixed: bool, device: torch.device) -> SimpleNamespace:
    pipeline = StreamDiffusionPipeline(fixed, device)
    live_timesteps, frames = iter((600, 450, 450, 800, 300)), torch.Generator().manual_seed(0)

    def vary() -> None:
        pipeline.update_input(torch.rand(LATENT, generator=frames))
        pipeline.prepare_scheduler([next(live_timesteps)])

    return SimpleNamespace(
        step=pipeline.frame,
        eager=pipeline.predict_x0,
        own_graphs=True,
        vary=vary,
        requests=5,
        pipeline=pipeline,
    )
