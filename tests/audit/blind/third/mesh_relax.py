"""Message passing over the contact graph of a particle simulation (graph-network simulator)."""

from dataclasses import dataclass

import torch
from torch import nn

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
PARTICLES = 14


@dataclass
class Contacts:
    senders: torch.Tensor
    receivers: torch.Tensor
    stiffness: torch.Tensor

    @classmethod
    def allocate(cls, capacity):
        index = torch.zeros(2, capacity, dtype=torch.long, device=DEVICE)
        return cls(index[0], index[1], torch.zeros(capacity, device=DEVICE))

    @property
    def capacity(self):
        return self.stiffness.numel()

    def load(self, pairs):
        n = len(pairs)
        table = torch.tensor(pairs, dtype=torch.long).t()
        self.senders[:n].copy_(table[0])
        self.receivers[:n].copy_(table[1])
        self.stiffness.zero_()
        self.stiffness[:n].fill_(0.8)


def neighbours(radius):
    pairs = [(i, (i + k) % PARTICLES) for k in range(1, radius + 1) for i in range(PARTICLES)]
    return pairs[: len(pairs) - radius]


class InteractionNet(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.message = nn.Linear(2 * width, width)
        self.update = nn.Linear(2 * width, width)

    def forward(self, h, contacts):
        pair = torch.cat([h[contacts.senders], h[contacts.receivers]], dim=-1)
        m = torch.tanh(self.message(pair)) * contacts.stiffness[:, None]
        total = torch.zeros_like(h).index_add_(0, contacts.receivers, m)
        return h + torch.tanh(self.update(torch.cat([h, total], dim=-1)))


class Simulator:
    def __init__(self):
        torch.manual_seed(2)
        self.layers = nn.ModuleList(InteractionNet() for _ in range(2)).to(DEVICE).requires_grad_(False)
        self.nodes = torch.randn(PARTICLES, 8, device=DEVICE)
        self.contacts = Contacts.allocate(32)
        self.contacts.load(neighbours(1))
        self.drawn = []

    def search(self, radius, drift):
        pairs = neighbours(radius)
        if len(pairs) > self.contacts.capacity:
            self.drawn.append(self.contacts)  # the viewer draws from them until the episode ends
            self.contacts = Contacts.allocate(2 * len(pairs))
        self.contacts.load(pairs)
        self.nodes.mul_(0.9).add_(drift)

    def forward(self):
        h = self.nodes
        for layer in self.layers:
            h = layer(h, self.contacts)
        return h


simulator = Simulator()
radii = iter([2, 1, 3, 2, 4, 3] * 5)


def step():
    return simulator.forward()


def vary():
    radius = next(radii)
    simulator.search(radius, drift=0.05 * radius)
