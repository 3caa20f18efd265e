"""Gated MLP served while a trainer pushes new weights; kernels use packed copies."""

from types import SimpleNamespace

import torch
from torch import nn

ROWS, WIDTH, INNER = 5, 8, 12


class GatedMLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.Parameter(torch.ones(WIDTH), requires_grad=False)
        self.gate = nn.Linear(WIDTH, INNER, bias=False).requires_grad_(False)
        self.up = nn.Linear(WIDTH, INNER, bias=False).requires_grad_(False)
        self.down = nn.Linear(INNER, WIDTH, bias=False).requires_grad_(False)
        self.register_buffer("gate_up", torch.empty(2 * INNER, WIDTH), persistent=False)

    def load(self, state):
        for name, param in self.named_parameters():
            param.copy_(state[name])
        self.process_after_loading()

    def process_after_loading(self):
        """Pack the two input projections for one GEMM."""
        torch.cat([self.gate.weight, self.up.weight], out=self.gate_up)

    def forward(self, x):
        h = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.norm
        gate, up = (h @ self.gate_up.t()).chunk(2, dim=-1)
        return x + self.down(nn.functional.silu(gate) * up)


class Server:
    def __init__(self, seed=59):
        self.gen = torch.Generator().manual_seed(seed)
        self.model = GatedMLP()
        self.version = 0
        self.x = torch.randn(ROWS, WIDTH, generator=self.gen)
        self.live = ROWS
        self.checkpoint = None
        self.push()

    def push(self):
        """Receive a state dict from the trainer and load it."""
        state = {}
        for name, param in self.model.named_parameters():
            fresh = torch.randn(param.shape, generator=self.gen)
            state[name] = fresh / param.shape[-1] ** 0.5
        # the received tensors are dropped with the next push
        self.checkpoint = state
        self.model.load(state)
        self.version += 1

    def vary(self):
        self.live = 2 + (self.live * 2) % (ROWS - 1)
        fresh = torch.randn(self.live, WIDTH, generator=self.gen)
        self.x[: self.live].copy_(fresh)
        self.served = getattr(self, "served", 0) + 1
        if self.served in (2, 5):
            self.push()

    @torch.no_grad()
    def step(self):
        y = self.model(self.x)
        return y.clamp(-50, 50)


def make():
    server = Server()
    return SimpleNamespace(step=server.step, vary=server.vary, rows=lambda: server.live)
