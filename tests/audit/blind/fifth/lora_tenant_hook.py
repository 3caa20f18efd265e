"""Multi-tenant decode head: a base projection with the tenant's low-rank update on top.

The update is attached as a forward hook so that the base checkpoint stays untouched
and any projection of the model can be given one.
"""

from dataclasses import dataclass

import torch
from torch import nn

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
HIDDEN, VOCAB, RANK, BATCH = 16, 24, 4, 3


@dataclass(eq=False)
class Adapter:
    name: str
    down: torch.Tensor
    up: torch.Tensor
    alpha: float = 8.0

    @classmethod
    def load(cls, name, seed):
        gen = torch.Generator().manual_seed(seed)
        down = torch.randn(RANK, HIDDEN, generator=gen) * 0.4
        up = torch.randn(VOCAB, RANK, generator=gen) * 0.4
        return cls(name, down.to(DEVICE), (up * (cls.alpha / RANK)).to(DEVICE))


class AdapterStore:
    """Adapters resident on the device, by tenant."""

    def __init__(self, tenants):
        self._resident = {name: Adapter.load(name, 100 + i) for i, name in enumerate(tenants)}

    def __getitem__(self, name):
        return self._resident[name]

    def names(self):
        return list(self._resident)


def attach(module, store, first):
    """Hook the tenant's update onto `module`; returns the call that selects a tenant."""
    chosen = store[first]

    def add_update(mod, args, out):
        (x,) = args
        return out + (x @ chosen.down.T) @ chosen.up.T

    def select(name):
        nonlocal chosen
        if chosen.name != name:
            chosen = store[name]

    module.register_forward_hook(add_update)
    return select


class DecodeHead(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(HIDDEN)
        self.proj = nn.Linear(HIDDEN, VOCAB, bias=False)

    def forward(self, hidden):
        return self.proj(self.norm(hidden))


class Server:
    def __init__(self):
        torch.manual_seed(0)
        self.head = DecodeHead().to(DEVICE).eval()
        self.store = AdapterStore(["legal", "medical", "chat"])
        self.select = attach(self.head.proj, self.store, "legal")
        self.hidden = torch.zeros(BATCH, HIDDEN, device=DEVICE)
        self.gen = torch.Generator().manual_seed(7)
        self.served = 0
        self.fill()

    def fill(self):
        self.hidden.copy_(torch.randn(BATCH, HIDDEN, generator=self.gen))

    def next_request(self):
        self.served += 1
        names = self.store.names()
        self.select(names[self.served % len(names)])
        self.fill()


server = Server()


@torch.no_grad()
def step():
    return server.head(server.hidden)


def vary():
    server.next_request()
