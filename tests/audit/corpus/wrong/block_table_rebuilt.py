"""Paged attention: the scheduler builds a new block table tensor for each batch."""

import torch
from torch.nn.utils.rnn import pad_sequence

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["moved-address"]
SUBJECTS = ["block_table"]


class PagedCache:
    def __init__(self, num_blocks=8, block=2, dim=4):
        self.block = block
        self.k = torch.randn(num_blocks, block, dim, device=DEVICE)
        self.v = torch.randn(num_blocks, block, dim, device=DEVICE)


class Scheduler:
    def __init__(self):
        self.chains = [[0, 1, 2], [3, 4, 5]]
        self.build()

    def build(self):
        rows = [torch.tensor(c, device=DEVICE) for c in self.chains]
        self.block_table = pad_sequence(rows, batch_first=True)

    def advance(self):
        self.chains = [[(b + 3) % 8 for b in chain] for chain in self.chains]
        self.build()


class DecodeAttention:
    def __init__(self):
        torch.manual_seed(0)
        self.cache, self.scheduler = PagedCache(), Scheduler()
        self.q = torch.randn(2, 4, device=DEVICE)
        self.lens = torch.tensor([5, 3], device=DEVICE)

    def forward(self):
        table = self.scheduler.block_table  # HERE
        k = self.cache.k[table].flatten(1, 2)  # HERE
        v = self.cache.v[table].flatten(1, 2)  # HERE
        scores = torch.einsum("bd,btd->bt", self.q, k)
        ahead = torch.arange(k.shape[1], device=DEVICE) >= self.lens[:, None]
        weights = scores.masked_fill(ahead, float("-inf")).softmax(-1)
        return torch.einsum("bt,btd->bd", weights, v)


def make():
    layer = DecodeAttention()

    def vary():
        layer.q.add_(0.1)
        layer.scheduler.advance()

    return {"step": layer.forward, "vary": vary, "reset": None}
