"""Beam search: caches follow their beams through a pair of buffers."""

from types import SimpleNamespace

import torch

BEAMS, VOCAB, DIM, LENGTH = 4, 20, 8, 16


class BeamDecoder:
    def __init__(self, seed=19):
        g = self.gen = torch.Generator().manual_seed(seed)
        self.emb = torch.randn(VOCAB, DIM, generator=g)
        self.wq, self.wk, self.wv = (torch.randn(DIM, DIM, generator=g) / DIM**0.5 for _ in range(3))
        self.head = torch.randn(DIM, VOCAB, generator=g)
        self.k = torch.zeros(BEAMS, LENGTH, DIM)
        self.v = torch.zeros(BEAMS, LENGTH, DIM)
        self.k_next = torch.zeros(BEAMS, LENGTH, DIM)
        self.v_next = torch.zeros(BEAMS, LENGTH, DIM)
        self.tokens = torch.zeros(BEAMS, dtype=torch.long)
        self.parents = torch.arange(BEAMS)
        self.scores = torch.zeros(BEAMS)
        self.pos = torch.zeros(1, dtype=torch.long)
        self.bias = torch.zeros(VOCAB)
        self.tick = 0
        self.begin(1)

    def begin(self, first):
        """A new prompt; the caches need no wipe, the position hides old rows."""
        self.tokens.fill_(first)
        self.parents.copy_(torch.arange(BEAMS))
        self.scores.fill_(-1e9)
        self.scores[0] = 0.0
        self.pos.zero_()

    def vary(self):
        self.tick += 1
        if self.tick % 5 == 0:
            self.begin(self.tick % VOCAB)
        # token bias of the request, e.g. a repetition or a style control
        self.bias.copy_(torch.randn(VOCAB, generator=self.gen) * 0.5)

    def step(self):
        # bring the caches into the order of the beams that survived
        torch.index_select(self.k, 0, self.parents, out=self.k_next)
        torch.index_select(self.v, 0, self.parents, out=self.v_next)
        x = self.emb[self.tokens]
        self.k_next.index_copy_(1, self.pos, (x @ self.wk)[:, None])
        self.v_next.index_copy_(1, self.pos, (x @ self.wv)[:, None])
        att = torch.einsum("bd,bld->bl", x @ self.wq, self.k_next) / DIM**0.5
        att = att.masked_fill(torch.arange(LENGTH) > self.pos, float("-inf"))
        y = torch.einsum("bl,bld->bd", att.softmax(-1), self.v_next) + x
        logp = (y @ self.head + self.bias).log_softmax(-1)
        total = (self.scores[:, None] + logp).flatten()
        best, index = total.topk(BEAMS)
        self.scores.copy_(best)
        self.parents.copy_(index // VOCAB)
        self.tokens.copy_(index % VOCAB)
        self.pos.add_(1).clamp_(max=LENGTH - 1)
        self.k.copy_(self.k_next)
        self.v.copy_(self.v_next)
        return index, best


def make():
    decoder = BeamDecoder()
    return SimpleNamespace(step=decoder.step, vary=decoder.vary, rows=lambda: BEAMS)
