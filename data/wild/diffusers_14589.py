"""CogVideoX stalled four times in each denoising step, and its loop could not go into a CUDA graph: the
pipeline reads the time step back from the device, for the strength of its guidance and for the scheduler,
whose table lies on the host. Such a read is fatal in a capture. The proposed repair takes the time steps
from a copy on the host, where they come from anyhow.
"""

import math
from types import SimpleNamespace

import torch

PROJECT = "diffusers"
LINK = "https://github.com/huggingface/diffusers/pull/14589"
MECHANISM = "host-sync"
CAUSE = "t.item()"
LINE = "timestep = timesteps_cpu[i] if fixed else t.item()"
EXECUTORS = ("emulated", "cuda")

STEPS, LATENT = 4, 6


def program(fixed: bool, device: torch.device) -> SimpleNamespace:
    numbers = torch.Generator().manual_seed(0)
    timesteps_cpu = [999 - 250 * i for i in range(STEPS)]
    timesteps = torch.tensor(timesteps_cpu, device=device)
    alphas_cumprod = [1 - 0.9 * i / 1000 for i in range(1000)]  # on the host
    noise = torch.ones(LATENT, device=device)
    prompt = torch.ones(LATENT, device=device)

    def denoise() -> torch.Tensor:
        latents = noise
        for i, t in enumerate(timesteps):
            timestep = timesteps_cpu[i] if fixed else t.item()
            guidance = 1 + 6 * (1 - math.cos(math.pi * ((1000 - timestep) / 1000) ** 5)) / 2
            alpha = alphas_cumprod[int(timestep)]
            unconditional = latents * torch.sigmoid(t * 1e-3)
            predicted = unconditional + guidance * (prompt - unconditional)
            latents = math.sqrt(alpha) * latents + math.sqrt(1 - alpha) * predicted
        return latents

    def vary() -> None:
        noise.copy_(torch.rand(LATENT, generator=numbers))
        prompt.copy_(torch.rand(LATENT, generator=numbers))

    return SimpleNamespace(step=denoise, vary=vary)
