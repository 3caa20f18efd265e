"""Top-2 mixture of experts with a fixed capacity, batch padded to a bucket."""

from types import SimpleNamespace

import torch

TOKENS, WIDTH, EXPERTS, TOP = 12, 10, 4, 2
CAPACITY = 5
LIVE = [12, 7, 9, 4, 11, 6, 8, 5]


class MoE:
    def __init__(self, seed=31):
        g = self.gen = torch.Generator().manual_seed(seed)
        self.router = torch.randn(WIDTH, EXPERTS, generator=g)
        self.w1 = torch.randn(EXPERTS, WIDTH, 2 * WIDTH, generator=g) / WIDTH**0.5
        self.w2 = torch.randn(EXPERTS, 2 * WIDTH, WIDTH, generator=g) / WIDTH**0.5
        self.x = torch.zeros(TOKENS, WIDTH)
        self.num_live = torch.zeros((), dtype=torch.long)
        self.live, self.tick = 0, 0
        self.iota = torch.arange(TOKENS)

    def vary(self):
        self.live = LIVE[self.tick % len(LIVE)]
        fresh = torch.randn(self.live, WIDTH, generator=self.gen)
        self.x[: self.live].copy_(fresh + 0.2)
        self.num_live.fill_(self.live)
        self.tick += 1

    def dispatch(self, expert, valid):
        """Position of every (choice, token) in its expert; first choices go first."""
        flat = expert.t().reshape(-1)  # TOP * TOKENS
        onehot = (flat[:, None] == torch.arange(EXPERTS)).long()
        place = onehot.cumsum(0).gather(1, flat[:, None]).squeeze(1) - 1
        fits = place < CAPACITY
        dump = torch.full_like(place, EXPERTS * CAPACITY)
        slot = torch.where(fits, flat * CAPACITY + place, dump)
        return slot, fits

    def experts(self, grid):
        h = torch.einsum("ecw,ewf->ecf", grid, self.w1).relu()
        return torch.einsum("ecf,efw->ecw", h, self.w2)

    def step(self):
        valid = self.iota < self.num_live
        gate, expert = (self.x @ self.router).softmax(-1).topk(TOP, dim=-1)
        gate = gate / gate.sum(-1, keepdim=True)
        slot, fits = self.dispatch(expert, valid)
        buf = torch.zeros(EXPERTS * CAPACITY + 1, WIDTH)
        source = self.x.repeat(TOP, 1)
        buf = buf.index_copy(0, slot, source)
        grid = buf[:-1].view(EXPERTS, CAPACITY, WIDTH)
        done = self.experts(grid).reshape(-1, WIDTH)
        picked = done[slot.clamp(max=EXPERTS * CAPACITY - 1)]
        # a dropped choice adds nothing; a padding row gives zeros
        picked = torch.where(fits[:, None], picked, torch.zeros_like(picked))
        picked = picked.view(TOP, TOKENS, WIDTH)
        out = (picked * gate.t()[..., None]).sum(0) + self.x
        return torch.where(valid[:, None], out, torch.zeros_like(out))


def make():
    layer = MoE()
    layer.vary()
    return SimpleNamespace(step=layer.step, vary=layer.vary, rows=lambda: layer.live)
