"""The number of tokens changes within its bucket: the padded size is the same, and a device count masks
the rest.
"""

import bisect

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = []
SUBJECTS = []


class Padding:
    SIZES = (1, 2, 4, 8, 16)

    @classmethod
    def of(cls, n):
        return cls.SIZES[bisect.bisect_left(cls.SIZES, n)]


class Batch:
    def __init__(self):
        self.num_tokens = 5
        self.ids = torch.zeros(16, dtype=torch.long, device=DEVICE)
        self.count = torch.zeros(1, dtype=torch.long, device=DEVICE)
        self.fill(5)

    def fill(self, n):
        self.num_tokens = n
        self.ids[:n].copy_((self.ids[:n] + n) % 13)
        self.ids[n:].zero_()
        self.count.fill_(n)


class MeanPooler:
    def __init__(self):
        torch.manual_seed(0)
        self.embed = torch.randn(13, 6, device=DEVICE)
        self.batch = Batch()

    def forward(self):
        padded = Padding.of(self.batch.num_tokens)
        h = self.embed[self.batch.ids[:padded]]
        valid = torch.arange(padded, device=DEVICE) < self.batch.count
        return (h * valid.unsqueeze(-1)).sum(0) / self.batch.count


def make():
    pooler = MeanPooler()
    sizes = iter([7, 6, 8, 5] * 9)
    return {"step": pooler.forward, "vary": lambda: pooler.batch.fill(next(sizes)), "reset": None}
