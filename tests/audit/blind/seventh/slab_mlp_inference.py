"""Surrogate model of a chemistry solver, evaluated in a fixed slab of memory.

Intermediate results are views of one slab, handed out by name.  The slab only
grows, and views are dropped between requests and cut anew.
"""

import weakref

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Slab:
    """Named views at fixed offsets of a single allocation."""

    def __init__(self, floats):
        self.memory = torch.zeros(floats, device=DEVICE)
        self.offsets = {}
        self.end = 0
        self.views = weakref.WeakValueDictionary()

    def take(self, name, *shape):
        view = self.views.get(name)
        if view is not None and view.shape == torch.Size(shape):
            return view
        size = 1
        for n in shape:
            size *= n
        if name not in self.offsets:
            self._reserve(name, size)
        start = self.offsets[name]
        view = self.memory[start : start + size].view(shape)
        self.views[name] = view
        return view

    def _reserve(self, name, size):
        if self.end + size > self.memory.numel():
            grown = torch.zeros(2 * (self.end + size), device=DEVICE)
            grown[: self.end].copy_(self.memory[: self.end])
            self.memory = grown
            self.views.clear()
        self.offsets[name] = self.end
        self.end += size


class Surrogate:
    def __init__(self, cells=18, species=6, width=20, seed=161):
        self.rng = torch.Generator(device=DEVICE).manual_seed(seed)
        self.shape = (cells, species, width)
        self.slab = Slab(4096)
        self.w_in = self._randn(species, width) / species**0.5
        self.w_mid = self._randn(width, width) / width**0.5
        self.w_out = self._randn(width, species) / width**0.5
        self.state = self.slab.take("state", cells, species)
        self.load()

    def _randn(self, *shape):
        return torch.randn(*shape, device=DEVICE, generator=self.rng)

    def load(self):
        """Write the next cells through a freshly cut view."""
        cells, species, _ = self.shape
        self.state = None
        self.state = self.slab.take("state", cells, species)
        self.state.uniform_(generator=self.rng)

    def rates(self):
        cells, species, width = self.shape
        h = self.slab.take("hidden", cells, width)
        g = self.slab.take("gate", cells, width)
        r = self.slab.take("rates", cells, species)
        torch.mm(self.state, self.w_in, out=h)
        torch.tanh(h, out=h)
        torch.mm(h, self.w_mid, out=g)
        torch.sigmoid(g, out=g)
        torch.mul(h, g, out=h)
        torch.mm(h, self.w_out, out=r)
        torch.sub(r, r.mean(1, keepdim=True), out=r)
        return r, h.square().mean(1)


surrogate = Surrogate()


def step():
    return surrogate.rates()


def vary():
    surrogate.load()
