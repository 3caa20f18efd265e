"""A copy.copy of the metadata per step, whose tensors are advanced in place, and whose host fields differ."""

import copy

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = []
SUBJECTS = []


class Metadata:
    __slots__ = ("_max_len", "num_decodes", "query_start", "seq_lens", "tag")

    def __init__(self, seq_lens, query_start):
        self.seq_lens, self.query_start = seq_lens, query_start
        self.num_decodes, self.tag, self._max_len = 3, "first", 16

    @property
    def max_len(self):
        return self._max_len


class Pooler:
    def __init__(self):
        torch.manual_seed(0)
        base = torch.arange(3, device=DEVICE)
        self.meta = Metadata(base + 2, base * 16)
        self.values = torch.randn(48, 4, device=DEVICE)

    def forward(self):
        meta = self.meta
        if meta.num_decodes < 0:
            raise ValueError(meta.tag)
        at = torch.arange(meta.max_len, device=DEVICE)
        rows = self.values[meta.query_start[:, None] + at]
        valid = (at < meta.seq_lens[:, None]).unsqueeze(-1)
        return torch.where(valid, rows, float("-inf")).amax(1)

    def advance(self):
        meta = copy.copy(self.meta)
        meta.seq_lens.add_(1).clamp_(max=16)
        meta.num_decodes, meta.tag = meta.num_decodes + 1, f"after {meta.tag}"[:20]
        self.meta = meta


def make():
    pooler = Pooler()
    return {"step": pooler.forward, "vary": pooler.advance, "reset": None}
