"""With graphs the images of SDXL were black, the first one excepted. Its autoencoder overflows in half
precision, so the pipeline makes it float for each decoding and half again afterwards, and each time its
parameters get new memory. The graph of the decoder reads the floats of its capture, which nobody holds any
more. Repaired by holding on to the data of the parameters for as long as the graph lives.
"""

from types import SimpleNamespace

import torch

from mrv2lab.graphs import capture

PROJECT = "stable-fast"
LINK = "https://github.com/chengzeyi/stable-fast/issues/53"
MECHANISM = "liveness"
CAUSE = "self.weights"
LINE = "self.weights = {name: weight.to(dtype) for name, weight in self.weights.items()}"
EXECUTORS = ("emulated", "cuda")

CHANNELS, DENOISING_STEPS = 8, 4


class AutoencoderKL:
    """Turns latents into pixels."""

    def __init__(self, device: torch.device):
        ramp = torch.linspace(0.25, 2, CHANNELS, device=device, dtype=torch.float16)
        self.weights = {"conv_in": ramp, "bias": ramp / 4, "conv_out": ramp.flip(0)}

    def to(self, dtype: torch.dtype) -> None:
        self.weights = {name: weight.to(dtype) for name, weight in self.weights.items()}

    def decode(self, latents: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(latents * self.weights["conv_in"] + self.weights["bias"])
        return hidden * self.weights["conv_out"]


class GraphedDecoder:
    """The decoder behind a graph, made when it is called first."""

    def __init__(self, fixed: bool, vae: AutoencoderKL, backend: str):
        self.fixed, self.vae, self.backend = fixed, vae, backend
        self.graph, self.held = None, []

    def build(self, latents: torch.Tensor) -> None:
        self.static_input = latents.clone()
        self.vae.decode(self.static_input)
        self.graph = capture(lambda: self.vae.decode(self.static_input), backend=self.backend)
        if self.fixed:
            self.held = list(self.vae.weights.values())

    def __call__(self, latents: torch.Tensor) -> torch.Tensor:
        if self.graph is None:
            self.build(latents)
        self.static_input.copy_(latents)
        self.graph.replay()
        return self.graph.outputs.clone()


def program(fixed: bool, device: torch.device) -> SimpleNamespace:
    vae = AutoencoderKL(device)
    decoder = GraphedDecoder(fixed, vae, "cuda" if device.type == "cuda" else "emulated")
    prompt = torch.linspace(-1, 1, CHANNELS, device=device)
    previews: list[torch.Tensor] = []  # of all denoising steps, for the user

    def generate(decode) -> torch.Tensor:
        for step in range(DENOISING_STEPS):
            previews.append((previews[-1] if step else prompt) * 0.9)
        vae.to(torch.float32)
        image = decode(previews[-1])
        vae.to(torch.float16)
        return image

    def vary() -> None:
        prompt.mul_(0.8).add_(0.1)

    return SimpleNamespace(
        step=lambda: generate(decoder),
        eager=lambda: generate(vae.decode),
        own_graphs=True,
        vary=vary,
        decoder=decoder,
    )
