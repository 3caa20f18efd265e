"""Speculative decoding: keep the drafts that the target model agrees with, replace the first that it does not."""

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
BATCH, DRAFTS, VOCAB = 4, 3, 24
gen = torch.Generator().manual_seed(21)


class CounterRNG:
    """Counter-based random numbers: number i of a seed is a hash of both, so nothing is kept on the device."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.drawn = 0

    def uniform(self, *shape: int) -> torch.Tensor:
        count = 1
        for n in shape:
            count *= n
        x = torch.arange(self.drawn, self.drawn + count, device=DEVICE)
        self.drawn += count
        return self.mix(x + self.seed * 7919).view(shape)

    @staticmethod
    def mix(x: torch.Tensor) -> torch.Tensor:
        x = (x * 2654435761) & 0xFFFFFFFF
        x = x ^ (x >> 15)
        x = (x * 2246822519) & 0xFFFFFFFF
        x = x ^ (x >> 13)
        return (x & 0xFFFFFF).to(torch.float32).add_(0.5).div_(1 << 24)


class RejectionSampler:
    def __init__(self, seed: int) -> None:
        self.rng = CounterRNG(seed)
        self.place = torch.arange(DRAFTS, device=DEVICE)

    def recover(self, target: torch.Tensor, draft: torch.Tensor) -> torch.Tensor:
        """What to say instead of each draft: drawn from what the draft model gave too little."""
        rest = (target - draft).clamp_(min=0)
        rest = rest / rest.sum(-1, keepdim=True).clamp_(min=1e-6)
        noise = -torch.log(self.rng.uniform(BATCH, DRAFTS, VOCAB))
        return (rest / noise).argmax(-1)

    def __call__(self, ids: torch.Tensor, target: torch.Tensor, draft: torch.Tensor):
        p = target.gather(2, ids[..., None]).squeeze(2)
        q = draft.gather(2, ids[..., None]).squeeze(2)
        agreed = self.rng.uniform(BATCH, DRAFTS) * q <= p
        count = agreed.long().cumprod(1).sum(1)
        recovered = self.recover(target, draft)
        tokens = torch.where(self.place < count[:, None], ids, -1)
        tokens = torch.where(self.place == count[:, None], recovered, tokens)
        return tokens, count


target_logits = torch.zeros(BATCH, DRAFTS, VOCAB, device=DEVICE)
draft_logits = torch.zeros(BATCH, DRAFTS, VOCAB, device=DEVICE)
draft_ids = torch.zeros(BATCH, DRAFTS, dtype=torch.long, device=DEVICE)
sampler = RejectionSampler(seed=1234)


def propose() -> None:
    target = torch.randn(BATCH, DRAFTS, VOCAB, generator=gen)
    draft = target + 0.8 * torch.randn(BATCH, DRAFTS, VOCAB, generator=gen)
    ids = torch.multinomial(draft.softmax(-1).flatten(0, 1), 1, generator=gen)
    target_logits.copy_(target)
    draft_logits.copy_(draft)
    draft_ids.copy_(ids.view(BATCH, DRAFTS))


propose()


def step():
    return sampler(draft_ids, target_logits.softmax(-1), draft_logits.softmax(-1))


def vary():
    propose()


def reset():
    sampler.rng.drawn = 0
