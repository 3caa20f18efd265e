"""An image without an adapter could come out as if one were still applied, or from memory that had been given
back. A switch of adapters unloads the old one, loads the new one and then drops the captured graphs. If
loading fails, nothing is applied any more, but the graphs stay; the next request, for the plain model, finds
nothing to switch and replays them. Repaired by dropping the graphs when a switch fails, too.
"""

from types import SimpleNamespace

import torch

from mrv2lab.graphs import capture

PROJECT = "Unsloth"
LINK = "https://github.com/unslothai/unsloth/pull/10537"
MECHANISM = "liveness"
CAUSE = "self.lora"
LINE = "self.lora = None"
EXECUTORS = ("emulated", "cuda")

HIDDEN, RANK = 6, 2


class Transformer:
    """A denoiser of one layer, with room for one adapter."""

    def __init__(self, device: torch.device):
        self.weight, self.lora = torch.eye(HIDDEN, device=device) * 0.5, ()

    def unload_lora_weights(self) -> None:
        self.lora = None

    def load_lora_weights(self, scale: float, rank: int) -> None:
        down = torch.full((HIDDEN, rank), scale, device=self.weight.device)
        up = torch.linspace(-1, 1, RANK * HIDDEN, device=self.weight.device).view(RANK, HIDDEN)
        if down.shape[1] != up.shape[0]:
            raise ValueError(f"rank {rank} does not fit")
        self.lora = down, up

    def forward(self, latents: torch.Tensor) -> torch.Tensor:
        out = latents @ self.weight
        if self.lora:
            out = out + latents @ self.lora[0] @ self.lora[1]
        return torch.tanh(out)


class DiffusionBackend:
    """A pipeline whose denoiser is captured once for each shape."""

    def __init__(self, fixed: bool, device: torch.device):
        self.fixed, self.module, self.applied, self.graphs = fixed, Transformer(device), (), {}
        self.backend = "cuda" if device.type == "cuda" else "emulated"

    def denoise(self, latents: torch.Tensor) -> torch.Tensor:
        if latents.shape not in self.graphs:
            static = latents.clone()
            self.module.forward(static)
            graph = capture(lambda: self.module.forward(static), backend=self.backend)
            self.graphs[latents.shape] = static, graph
        static, graph = self.graphs[latents.shape]
        static.copy_(latents)
        graph.replay()
        return graph.outputs.clone()

    def apply_loras(self, desired: tuple) -> None:
        if desired == self.applied:
            return
        try:
            self.module.unload_lora_weights()
            if desired:
                self.module.load_lora_weights(*desired)
        except ValueError:  # told to the client
            self.applied = ()
            if self.fixed:
                self.graphs.clear()
        else:
            self.applied = desired
            self.graphs.clear()


def program(fixed: bool, device: torch.device) -> SimpleNamespace:
    backend, latents = DiffusionBackend(fixed, device), torch.ones(1, HIDDEN, device=device)
    requests = iter([[(0.3, RANK)], [(0.2, 3 * RANK), ()], [(0.5, RANK)], [(0.4, RANK + 1), ()]])

    def vary() -> None:
        for desired in next(requests):  # one that fails, and the next one
            backend.apply_loras(desired)
        latents.mul_(0.8).add_(torch.linspace(0, 0.2, HIDDEN, device=device))

    step, eager = (lambda run=run: run(latents) for run in (backend.denoise, backend.module.forward))
    return SimpleNamespace(step=step, eager=eager, own_graphs=True, vary=vary, requests=4, backend=backend)
