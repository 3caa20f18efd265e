"""YaRN-like rotary cache that is extended as sequences grow."""

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
DIM, ROWS, CAPACITY, VOCAB = 16, 5, 256, 80


class RotaryCache(torch.nn.Module):
    """Table reserved for `CAPACITY` positions; computed lazily up to `length`."""

    def __init__(self, initial=16):
        super().__init__()
        self.length = 0
        self.scale = 1.0
        self.register_buffer("storage", torch.zeros(CAPACITY, DIM, device=DEVICE))
        self.register_buffer("inv_freq", self._inv_freq())
        self.extend(initial)

    def _inv_freq(self):
        inv = 1.0 / 10000.0 ** (torch.arange(0, DIM, 2).float() / DIM)
        return (inv / self.scale).to(DEVICE)

    @property
    def table(self):
        return self.storage[: self.length]

    def rescale(self, scale):
        """Change the interpolation factor; recomputes what was already filled."""
        self.scale = scale
        self.inv_freq = self._inv_freq()
        filled, self.length = self.length, 0
        self.extend(filled)

    def extend(self, length):
        if length <= self.length:
            return
        t = torch.arange(self.length, length, device=DEVICE).float()
        ang = t[:, None] * self.inv_freq[None]
        self.storage[self.length : length].copy_(torch.cat([ang.cos(), ang.sin()], -1))
        self.length = length

    def forward(self, positions, x):
        cos, sin = self.storage[positions].chunk(2, dim=-1)
        a, b = x.chunk(2, dim=-1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


class Model:
    def __init__(self):
        gen = torch.Generator().manual_seed(211)
        self.rope = RotaryCache()
        self.embed = torch.randn(VOCAB, DIM, generator=gen).to(DEVICE)
        self.keys = torch.randn(20, DIM, generator=gen).to(DEVICE)
        self.ids = torch.zeros(ROWS, dtype=torch.long, device=DEVICE)
        self.positions = torch.zeros(ROWS, dtype=torch.long, device=DEVICE)

    def forward(self):
        q = self.rope(self.positions, self.embed[self.ids])
        return (q @ self.keys.T / DIM**0.5).softmax(-1)


class Driver:
    def __init__(self, model):
        self.model = model
        self.longest = 12
        self.turn = 0
        self.gen = torch.Generator().manual_seed(212)
        self.sample()

    def sample(self):
        m = self.model
        m.ids.copy_(torch.randint(0, VOCAB, (ROWS,), generator=self.gen))
        m.positions.copy_(torch.randint(0, self.longest, (ROWS,), generator=self.gen))

    def advance(self):
        self.turn += 1
        self.longest += 17
        self.model.rope.extend(self.longest)
        if self.turn == 4:
            self.model.rope.rescale(2.0)
        assert self.model.rope.table.shape[0] >= self.longest
        self.sample()


model = Model()
driver = Driver(model)


def step():
    return model.forward()


def vary():
    driver.advance()
