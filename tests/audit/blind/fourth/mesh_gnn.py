"""Message passing on meshes that a solver refines and coarsens between time steps."""

from dataclasses import dataclass, field

import torch
from torch import nn

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
NODES, MAX_EDGES, WIDTH = 18, 64, 8


def _ids():
    return torch.zeros(MAX_EDGES, dtype=torch.long, device=DEVICE)


@dataclass
class Mesh:
    """Buffers for the largest mesh, and how much of them the present one takes."""

    source: torch.Tensor = field(default_factory=_ids)
    target: torch.Tensor = field(default_factory=_ids)
    length: torch.Tensor = field(default_factory=lambda: torch.ones(MAX_EDGES, 1, device=DEVICE))
    nodes: torch.Tensor = field(default_factory=lambda: torch.zeros(NODES, WIDTH, device=DEVICE))
    used: int = 40

    def edges(self):
        return (t[: self.used] for t in (self.source, self.target, self.length))

    def load(self, source, target, length, nodes):
        self.used = len(source)
        for store, new in zip(self.edges(), (source, target, length)):
            store.copy_(new)
        self.nodes.copy_(nodes)


class Layer(nn.Module):
    def __init__(self, gen):
        super().__init__()
        self.message = nn.Linear(2 * WIDTH + 1, WIDTH)
        self.update = nn.Linear(2 * WIDTH, WIDTH)
        with torch.no_grad():
            for p in self.parameters():
                p.copy_(torch.randn(p.shape, generator=gen) * 0.3)

    def forward(self, hidden, mesh):
        source, target, length = mesh.edges()
        pair = torch.cat([hidden[source], hidden[target], length], dim=-1)
        inbox = torch.zeros_like(hidden).index_add_(0, target, torch.relu(self.message(pair)))
        return hidden + torch.tanh(self.update(torch.cat([hidden, inbox], dim=-1)))


class Network(nn.Module):
    def __init__(self, depth=3):
        super().__init__()
        gen = torch.Generator().manual_seed(4)
        self.layers = nn.ModuleList(Layer(gen) for _ in range(depth))
        self.out = nn.Linear(WIDTH, 2)
        with torch.no_grad():
            self.out.weight.copy_(torch.randn(2, WIDTH, generator=gen))
            self.out.bias.zero_()

    def forward(self, mesh):
        hidden = mesh.nodes
        for layer in self.layers:
            hidden = layer(hidden, mesh)
        return self.out(hidden)


mesh = Mesh()
network = Network().to(DEVICE).eval()
solver = torch.Generator().manual_seed(8)
SIZES = (52, 47, 61, 38, 44, 58)
epoch = 0


@torch.no_grad()
def step():
    return network(mesh)


def vary():
    global epoch
    count = SIZES[epoch % len(SIZES)]
    epoch += 1
    source = torch.randint(NODES, (count,), generator=solver)
    hop = torch.randint(1, NODES, (count,), generator=solver)
    length = torch.rand(count, 1, generator=solver)
    mesh.load(source, (source + hop) % NODES, length, torch.randn(NODES, WIDTH, generator=solver))
