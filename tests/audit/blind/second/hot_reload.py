from dataclasses import dataclass
from types import SimpleNamespace

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@dataclass
class Checkpoint:
    version: int
    gate: torch.Tensor
    up: torch.Tensor
    norm: torch.Tensor


class Store:
    def __init__(self, hidden=4, inner=6):
        self.hidden, self.inner = hidden, inner

    def read(self, version):
        n = torch.arange(self.hidden * self.inner, dtype=torch.float32).view(self.hidden, self.inner)
        return Checkpoint(
            version, torch.sin(n + version), torch.cos(n - version), 1 + 0.1 * n[:, 0] / (1 + version)
        )


class GatedMLP:
    def __init__(self, store):
        self.fused = torch.zeros(store.hidden, 2 * store.inner, device=DEVICE)
        self.version, self.checkpoint = None, None
        self.load(store.read(0))

    def load(self, checkpoint):
        if checkpoint.version == self.version:
            return
        self.checkpoint = checkpoint
        both = torch.cat([checkpoint.gate, checkpoint.up], dim=1)
        self.fused.copy_(checkpoint.norm[:, None] * both)
        self.version = checkpoint.version

    def __call__(self, x):
        x = x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + 1e-5)
        gate, up = (x @ self.fused).chunk(2, dim=-1)
        return torch.sigmoid(gate) * gate * up


class Server:
    def __init__(self):
        self.store = Store()
        self.mlp = GatedMLP(self.store)
        self.hidden = torch.ones(3, self.store.hidden, device=DEVICE)
        self.served = {}
        self.requests = 0

    def forward(self):
        version = self.mlp.version
        self.served[version] = self.served.get(version, 0) + 1
        return self.mlp(self.hidden)

    def accept(self):
        self.requests += 1
        n = torch.arange(self.hidden.numel(), dtype=torch.float32).view_as(self.hidden)
        self.hidden.copy_(torch.cos(n * self.requests))
        self.mlp.load(self.store.read(self.requests // 2))


def make_engine():
    server = Server()
    return SimpleNamespace(step=server.forward, vary=server.accept)
