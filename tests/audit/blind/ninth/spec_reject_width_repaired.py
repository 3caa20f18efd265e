"""Verification of speculative drafts by rejection sampling, adaptive draft width."""

from types import SimpleNamespace

import torch

BATCH, MAX_SPEC, VOCAB, WIDTH = 4, 5, 24, 16
REJECTED = -1


class AdaptiveWidth:
    """Chooses how many draft tokens are proposed, from the acceptance so far."""

    def __init__(self):
        self.schedule = [5, 3, 1, 4, 2, 5, 1, 3]
        self.turn = 0
        self.width = self.schedule[0]

    def advance(self):
        self.turn += 1
        self.width = self.schedule[self.turn % len(self.schedule)]


class Verifier:
    def __init__(self, seed=23):
        g = self.gen = torch.Generator().manual_seed(seed)
        self.emb = torch.randn(VOCAB, WIDTH, generator=g)
        self.head = torch.randn(WIDTH, VOCAB, generator=g) / WIDTH**0.5
        self.ctl = AdaptiveWidth()
        self.last_token = torch.zeros(BATCH, dtype=torch.long)
        self.drafts = torch.zeros(BATCH, MAX_SPEC, dtype=torch.long)
        self.draft_probs = torch.full((BATCH, MAX_SPEC, VOCAB), 1.0 / VOCAB)
        self.uniform = torch.full((BATCH, MAX_SPEC), 0.5)
        self.cols = torch.arange(MAX_SPEC)
        self.width = torch.zeros((), dtype=torch.long)
        self.proposed_total = 0
        self.propose()

    def propose(self):
        g, w = self.gen, self.ctl.width
        self.width.fill_(w)
        self.last_token.copy_(torch.randint(0, VOCAB, (BATCH,), generator=g))
        # only the proposed columns are filled; the others keep what they had
        self.drafts[:, :w].copy_(torch.randint(0, VOCAB, (BATCH, w), generator=g))
        probs = torch.randn(BATCH, w, VOCAB, generator=g).softmax(-1)
        self.draft_probs[:, :w].copy_(probs)
        self.uniform[:, :w].copy_(torch.rand(BATCH, w, generator=g) * 0.3)
        self.proposed_total += BATCH * w

    def vary(self):
        self.ctl.advance()
        self.propose()

    def step(self):
        fed = torch.cat([self.last_token[:, None], self.drafts], dim=1)
        p = (self.emb[fed] @ self.head).softmax(-1)  # B, K + 1, V
        q = self.draft_probs
        at = self.drafts[:, :, None]
        ratio = p[:, :-1].gather(2, at) / q.gather(2, at).clamp(min=1e-9)
        accept = self.uniform < ratio.squeeze(2)
        proposed = self.cols[None, :] < self.width
        accept = accept & proposed
        count = accept.long().cumprod(1).sum(1)  # B
        # token behind the accepted ones: recovered from the residual, or a bonus
        residual = (p[:, :-1] - q).clamp(min=0)
        residual = torch.where(proposed[..., None], residual, p[:, :-1])
        choices = torch.cat([residual, p[:, -1:]], dim=1)
        pick = count[:, None, None].expand(-1, 1, VOCAB)
        extra = choices.gather(1, pick).squeeze(1).argmax(-1)
        cols = torch.arange(MAX_SPEC + 1)
        padded = torch.cat([self.drafts, torch.full((BATCH, 1), REJECTED)], dim=1)
        out = torch.where(cols < count[:, None], padded, torch.full_like(padded, REJECTED))
        out = out.scatter(1, count[:, None], extra[:, None])
        return out, count


def make():
    verifier = Verifier()
    return SimpleNamespace(step=verifier.step, vary=verifier.vary, rows=lambda: BATCH)
