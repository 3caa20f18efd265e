"""MiniMax Music 3 rendered pure noise as soon as graphs were on, without an exception. The block compiler
captures the decoder at its first step and replays it for all others, and callers are to give it pinned
buffers; the loop of this model gave none, so the decoder cloned its input beforehand, and each replay reads
the clone of the first step, long freed. Repaired by passing decode buffers as the other models do.
"""

from itertools import count
from types import SimpleNamespace

import torch

from mrv2lab.graphs import capture

PROJECT = "ComfyUI"
LINK = "https://github.com/Comfy-Org/ComfyUI/pull/16428"
MECHANISM = "moved-address"
CAUSE = "x"
LINE = "x = embeds.clone() if decode_buffers is None else decode_buffers.copy_(embeds)"
EXECUTORS = ("emulated", "cuda")

DIM, CODES = 6, 8


class Llama2:
    """A decoder of one recurrent layer, whose steps can be compiled into a graph."""

    def __init__(self, device: torch.device):
        self.backend = "cuda" if device.type == "cuda" else "emulated"
        self.mixing = torch.eye(DIM, device=device).roll(1, 0) * 0.8 + 0.1
        self.past = torch.zeros(1, DIM, device=device)
        self.graph = None

    def layers(self, x: torch.Tensor) -> torch.Tensor:
        self.past.copy_(torch.tanh(self.past @ self.mixing + x))
        return self.past * 2 + x

    def forward(self, embeds: torch.Tensor, compiled: bool, decode_buffers: torch.Tensor | None = None):
        x = embeds.clone() if decode_buffers is None else decode_buffers.copy_(embeds)
        if not compiled:
            return self.layers(x)
        if self.graph is None:
            kept = self.past.clone()
            self.layers(x)  # warms up
            self.past.copy_(kept)
            self.graph = capture(lambda: self.layers(x), backend=self.backend)
        self.graph.replay()
        return self.graph.outputs


class MusicAR:
    """Its own decode loop: a code, its embedding, the next hidden state."""

    def __init__(self, fixed: bool, device: torch.device):
        self.model = Llama2(device)
        self.decode_buffers = torch.zeros(1, DIM, device=device) if fixed else None
        grid = torch.arange(CODES * DIM, device=device, dtype=torch.float32)
        self.embedding = torch.sin(grid).view(CODES, DIM)
        self.code = torch.zeros(1, dtype=torch.int64, device=device)

    def step(self, compiled: bool) -> torch.Tensor:
        embeds = self.embedding[self.code]
        hidden = self.model.forward(embeds, compiled, decode_buffers=self.decode_buffers)
        return hidden @ self.embedding.T


def program(fixed: bool, device: torch.device) -> SimpleNamespace:
    ar = MusicAR(fixed, device)
    drawn = count(1)

    def vary() -> None:
        ar.code.fill_(next(drawn) * 3 % CODES)  # what was sampled

    return SimpleNamespace(
        step=lambda: ar.step(True), eager=lambda: ar.step(False), own_graphs=True, vary=vary, ar=ar
    )
