"""Language-model step with image embeddings from an encoder cache keyed by hash."""

from collections import OrderedDict
from types import SimpleNamespace

import torch

TOKENS, PATCHES, WIDTH, VOCAB = 10, 4, 12, 32
PIXELS = 9
IMAGE_TOKEN = 0


class EncoderCache:
    """Keeps the last few encoded images; entries come and go by LRU."""

    def __init__(self, budget=3):
        self.budget, self.entries = budget, OrderedDict()
        self.hits = self.misses = 0

    def get_or_encode(self, key, encode):
        if key in self.entries:
            self.hits += 1
            self.entries.move_to_end(key)
        else:
            self.misses += 1
            self.entries[key] = encode()
            if len(self.entries) > self.budget:
                self.entries.popitem(last=False)
        return self.entries[key]


class VisionLM:
    def __init__(self, seed=41):
        g = self.gen = torch.Generator().manual_seed(seed)
        self.w_vis = torch.randn(PIXELS, WIDTH, generator=g) / PIXELS**0.5
        self.emb = torch.randn(VOCAB, WIDTH, generator=g)
        self.w_mix = torch.randn(WIDTH, WIDTH, generator=g) / WIDTH**0.5
        self.head = torch.randn(WIDTH, VOCAB, generator=g)
        self.images = torch.randn(4, PATCHES, PIXELS, generator=g)
        self.cache = EncoderCache()
        self.image = torch.zeros(PATCHES, WIDTH)
        self.ids = torch.ones(TOKENS, dtype=torch.long)
        self.patch_of = torch.zeros(TOKENS, dtype=torch.long)
        self.num_live = torch.zeros((), dtype=torch.long)
        self.tick, self.live = 0, TOKENS
        self.vary()

    def encode(self, index):
        return torch.tanh(self.images[index] @ self.w_vis)

    def vary(self):
        index = [0, 1, 0, 2, 3, 1, 2, 0][self.tick % 8]
        self.mm_hash = f"img-{index}"
        entry = self.cache.get_or_encode(self.mm_hash, lambda: self.encode(index))
        self.image.copy_(entry)
        text = 2 + self.tick % 4
        self.live = text + PATCHES
        ids = torch.randint(1, VOCAB, (TOKENS,), generator=self.gen)
        at = self.tick % 2
        ids[at : at + PATCHES] = IMAGE_TOKEN
        self.ids.copy_(ids)
        self.patch_of.zero_()
        self.patch_of[at : at + PATCHES].copy_(torch.arange(PATCHES))
        self.num_live.fill_(self.live)
        self.tick += 1

    def step(self):
        is_image = self.ids == IMAGE_TOKEN
        x = torch.where(is_image[:, None], self.image[self.patch_of], self.emb[self.ids])
        pos = torch.arange(TOKENS)
        seen = (pos[None, :] <= pos[:, None]) & (pos < self.num_live)[None, :]
        scores = (x @ self.w_mix) @ x.t() / WIDTH**0.5
        scores = scores.masked_fill(~seen, float("-inf"))
        y = x + scores.softmax(-1) @ x
        return y @ self.head


def make():
    model = VisionLM()
    return SimpleNamespace(step=model.step, vary=model.vary, rows=lambda: model.live)
