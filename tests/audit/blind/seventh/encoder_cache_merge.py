"""Multi-modal inputs: encoder outputs are cached per request and merged into embeddings."""

from collections import OrderedDict
from dataclasses import dataclass, field

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
BUDGET, DIM, VOCAB, IMAGE_TOKEN = 12, 16, 60, 59


@dataclass
class Placeholder:
    key: str
    offset: int
    length: int


@dataclass
class Prompt:
    ids: torch.Tensor
    images: list = field(default_factory=list)


class EncoderCache:
    """Bounded map from image hash to encoder output."""

    def __init__(self, limit=2):
        self.limit = limit
        self.entries = OrderedDict()
        self.misses = 0

    def get(self, key, length):
        if key not in self.entries:
            self.misses += 1
            gen = torch.Generator().manual_seed(sum(map(ord, key)))
            self.entries[key] = torch.randn(8, DIM, generator=gen).to(DEVICE)
            while len(self.entries) > self.limit:
                self.entries.popitem(last=False)
        self.entries.move_to_end(key)
        return self.entries[key][:length]


class MultiModalRunner:
    def __init__(self):
        gen = torch.Generator().manual_seed(291)
        self.embed = torch.randn(VOCAB, DIM, generator=gen).to(DEVICE)
        self.mix = (torch.randn(DIM, DIM, generator=gen) / 4).to(DEVICE)
        self.cache = EncoderCache()
        self.ids = torch.zeros(BUDGET, dtype=torch.long, device=DEVICE)
        self.mm_embeds = torch.zeros(BUDGET, DIM, device=DEVICE)
        self.placeholders = []

    def gather(self, prompt):
        """Host side of the merge: write ids and lay the image rows out by position."""
        self.placeholders = prompt.images
        ids = prompt.ids.clone()
        self.mm_embeds.zero_()
        for ph in prompt.images:
            ids[ph.offset : ph.offset + ph.length] = IMAGE_TOKEN
            rows = self.cache.get(ph.key, ph.length)
            self.mm_embeds[ph.offset : ph.offset + ph.length].copy_(rows)
        self.ids.copy_(ids)

    def forward(self):
        text = self.embed[self.ids]
        is_image = (self.ids == IMAGE_TOKEN)[:, None]
        h = torch.where(is_image, self.mm_embeds, text) if self.placeholders else text
        h = torch.tanh(h @ self.mix)
        return h.cumsum(0) / torch.arange(1, BUDGET + 1, device=DEVICE)[:, None]


_gen = torch.Generator().manual_seed(292)
_plans = iter(
    [
        [("cat", 2, 4)],
        [("dog", 0, 3), ("cat", 6, 5)],
        [],
        [("map", 5, 6)],
        [("cat", 1, 2), ("map", 4, 2), ("dog", 8, 4)],
        [],
    ]
)


def _prompt(plan):
    ids = torch.randint(0, IMAGE_TOKEN, (BUDGET,), generator=_gen)
    return Prompt(ids, [Placeholder(*p) for p in plan])


runner = MultiModalRunner()
runner.gather(_prompt([("dog", 3, 5)]))


def step():
    return runner.forward()


def vary():
    runner.gather(_prompt(next(_plans)))
