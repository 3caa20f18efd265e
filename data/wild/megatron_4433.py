"""Loss curves of latent MoE models lay apart with graphs and without. Each layer has a graph forward and
one backward, and inputs that have to be copied into a graph get a static buffer. To save memory such a
buffer was lent on as soon as the forward pass had been captured; but the backward pass reads it as well,
and finds there what another layer was given. Repaired by not lending these buffers.
"""

from types import SimpleNamespace

import torch

from mrv2lab.graphs import capture

PROJECT = "Megatron-LM"
LINK = "https://github.com/NVIDIA/Megatron-LM/pull/4433"
MECHANISM = "cross-capture"
CAUSE = "free_buffers"
LINE = "free_buffers.append(static_input)"
EXECUTORS = ("emulated", "cuda")

ROWS, HIDDEN, LAYERS = 2, 3, 2


def program(fixed: bool, device: torch.device) -> SimpleNamespace:
    backend = "cuda" if device.type == "cuda" else "emulated"
    weights = [torch.linspace(0.1, 1, HIDDEN, device=device) * (n + 1) for n in range(LAYERS)]
    latents = [torch.ones(ROWS, HIDDEN, device=device) for _ in range(LAYERS)]  # of another module
    free_buffers: list[torch.Tensor] = []
    layers = []

    def graphed(weight: torch.Tensor) -> SimpleNamespace:
        static_input = free_buffers.pop() if free_buffers else torch.zeros(ROWS, HIDDEN, device=device)

        def forward() -> torch.Tensor:
            return torch.tanh(static_input * weight)

        def backward() -> torch.Tensor:  # the gradient of the weight
            return ((1 - torch.tanh(static_input * weight) ** 2) * static_input).sum(0)

        forward()
        backward()
        fwd = capture(forward, backend=backend)
        if not fixed:
            free_buffers.append(static_input)
        return SimpleNamespace(static_input=static_input, fwd=fwd, bwd=capture(backward, backend=backend))

    def train() -> tuple[torch.Tensor, ...]:
        for layer, latent in zip(layers, latents, strict=True):
            layer.static_input.copy_(latent)
            layer.fwd.replay()
        for layer in reversed(layers):
            layer.bwd.replay()
        return tuple(layer.bwd.outputs for layer in layers)

    def eager() -> tuple[torch.Tensor, ...]:
        pairs = zip(weights, latents, strict=True)
        return tuple(((1 - torch.tanh(x * weight) ** 2) * x).sum(0) for weight, x in pairs)

    def vary() -> None:
        for n, latent in enumerate(latents):
            latent.add_(0.1 * (n + 1))

    layers += [graphed(weight) for weight in weights]
    return SimpleNamespace(step=train, eager=eager, own_graphs=True, vary=vary, layers=layers)
