"""Text embeddings: masked mean pooling, projection, unit length."""

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
VOCAB, DIM, OUT, MAX_LEN = 60, 12, 8, 16


@dataclass
class Text:
    ids: list = field(default_factory=list)

    @property
    def weight(self):
        return 1.0 / max(1, len(self.ids))


class Corpus:
    LENGTHS = (5, 14, 2, 9, 16, 3, 11)

    def __init__(self, seed):
        self.gen = torch.Generator().manual_seed(seed)
        self.turn = 0

    def next(self):
        n = self.LENGTHS[self.turn % len(self.LENGTHS)]
        self.turn += 1
        return Text(torch.randint(1, VOCAB, (n,), generator=self.gen).tolist())


class Embedder:
    def __init__(self):
        gen = torch.Generator().manual_seed(28)
        self.table = torch.randn(VOCAB, DIM, generator=gen).to(DEVICE)
        self.project = (torch.randn(DIM, OUT, generator=gen) * 0.5).to(DEVICE)
        self.ids = torch.zeros(MAX_LEN, dtype=torch.long, device=DEVICE)
        self.mask = torch.zeros(MAX_LEN, 1, device=DEVICE)
        self.result = torch.zeros(OUT, device=DEVICE)
        self.corpus = Corpus(61)
        self.text = None
        self.accept()

    def accept(self):
        self.text = self.corpus.next()
        n = len(self.text.ids)
        self.ids.zero_()
        self.ids[:n].copy_(torch.tensor(self.text.ids))
        self.mask.zero_()
        self.mask[:n].fill_(1.0)

    def encode(self):
        rows = torch.tanh(self.table[self.ids]) * self.mask
        pooled = rows.sum(0) * self.text.weight
        self.result.copy_(F.normalize(pooled @ self.project, dim=0))
        return self.result


embedder = Embedder()


@torch.no_grad()
def step():
    return embedder.encode()


def vary():
    embedder.accept()
