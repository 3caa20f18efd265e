"""Gated MLP with hot weight reloads.

The gate and up projections are parameters of their own for the checkpoint's sake; both are
cut out of one flat allocation, so a single matmul serves the pair.
"""

import torch
import torch.nn.functional as F
from torch import nn

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
DIM, INNER, TOKENS = 10, 14, 4


class FlatStorage:
    """One allocation; `take` cuts the next matrix out of it."""

    def __init__(self, numel):
        self.data = torch.zeros(numel, device=DEVICE)
        self.used = 0

    def take(self, rows, cols):
        part = self.data[self.used : self.used + rows * cols].view(rows, cols)
        self.used += rows * cols
        return nn.Parameter(part, requires_grad=False)


class GatedMLP(nn.Module):
    def __init__(self):
        super().__init__()
        flat = FlatStorage(3 * DIM * INNER)
        self.gate = flat.take(INNER, DIM)
        self.up = flat.take(INNER, DIM)
        self.down = flat.take(DIM, INNER)
        self._pair = None
        self._flat = flat.data

    @property
    def pair(self):
        if self._pair is None:
            self._pair = self._flat[: 2 * INNER * DIM].view(2 * INNER, DIM)
        return self._pair

    def forward(self, x):
        gate, up = (x @ self.pair.T).chunk(2, dim=-1)
        return x + (F.silu(gate) * up) @ self.down.T


class Checkpoints:
    def __init__(self, seed):
        self.gen = torch.Generator().manual_seed(seed)
        self.version = 0

    def pull(self, like):
        self.version += 1
        return {n: torch.randn(t.shape, generator=self.gen) * 0.4 for n, t in like.items()}


class Endpoint:
    def __init__(self):
        self.mlp = GatedMLP().eval()
        self.source = Checkpoints(18)
        self.loaded = None
        self.x = torch.zeros(TOKENS, DIM, device=DEVICE)
        self.gen = torch.Generator().manual_seed(41)
        self.refresh()

    def refresh(self):
        state = self.source.pull(self.mlp.state_dict())
        self.mlp.load_state_dict(state)
        self.loaded = state
        self.x.copy_(torch.randn(TOKENS, DIM, generator=self.gen))


endpoint = Endpoint()


@torch.no_grad()
def step():
    return endpoint.mlp(endpoint.x)


def vary():
    endpoint.refresh()
