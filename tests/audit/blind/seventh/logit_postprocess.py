"""Greedy decoding head with model-specific logit scaling and soft capping."""

from dataclasses import dataclass

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
ROWS, VOCAB, PADDED_VOCAB, DIM = 5, 45, 48, 16


@dataclass
class HeadConfig:
    logit_scale: float = 0.25
    soft_cap: float = 30.0
    org_vocab: int = VOCAB


class LogitsProcessor:
    """Scale, cap, and drop the padding of the vocabulary."""

    def __init__(self, config):
        self.config = config

    def __call__(self, logits):
        cfg = self.config
        logits = logits[..., : cfg.org_vocab]
        if cfg.logit_scale != 1.0:
            logits = logits * cfg.logit_scale
        if cfg.soft_cap:
            logits = cfg.soft_cap * torch.tanh(logits / cfg.soft_cap)
        return logits


class GreedyHead:
    def __init__(self):
        gen = torch.Generator().manual_seed(271)
        self.config = HeadConfig()
        self.lm_head = torch.randn(DIM, PADDED_VOCAB, generator=gen).to(DEVICE)
        self.processor = LogitsProcessor(self.config)
        self.allowed = torch.ones(ROWS, VOCAB, dtype=torch.bool, device=DEVICE)
        self.hidden = torch.zeros(ROWS, DIM, device=DEVICE)
        self.next_ids = torch.zeros(ROWS, dtype=torch.long, device=DEVICE)

    def sample(self):
        logits = self.processor(self.hidden @ self.lm_head)
        logits = logits.masked_fill(~self.allowed, float("-inf"))
        self.next_ids.copy_(logits.argmax(dim=-1))
        return self.next_ids


class Frontend:
    """Applies per-deployment overrides of the head and prepares the next batch."""

    def __init__(self, head):
        self.head = head
        self.gen = torch.Generator().manual_seed(272)
        self.overrides = [
            {},
            {"logit_scale": 0.5},
            {"soft_cap": 0.0},
            {"logit_scale": 1.0},
            {"soft_cap": 50.0},
            {"logit_scale": 0.125},
        ]
        self.load()

    def load(self):
        self.head.hidden.copy_(torch.randn(ROWS, DIM, generator=self.gen))
        self.head.allowed.copy_(torch.rand(ROWS, VOCAB, generator=self.gen) < 0.7)

    def advance(self):
        for key, value in self.overrides.pop(0).items():
            setattr(self.head.config, key, value)
        self.load()


head = GreedyHead()
frontend = Frontend(head)


def step():
    return head.sample()


def vary():
    frontend.advance()
