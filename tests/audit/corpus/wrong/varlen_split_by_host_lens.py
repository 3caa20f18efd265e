"""Packed sequences are split by a host list of lengths for per-sequence pooling; the total stays the same."""

from typing import NamedTuple

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["frozen-host-value"]
SUBJECTS = ["lens", "query_lens"]


class Packed(NamedTuple):
    hidden: torch.Tensor
    query_lens: list


class VarlenPooler:
    def __init__(self, dim=5):
        torch.manual_seed(0)
        self.scorer = torch.randn(dim, device=DEVICE)
        self.batch = Packed(torch.randn(9, dim, device=DEVICE), [2, 3, 4])

    def attend(self, rows):
        return torch.softmax(rows @ self.scorer, dim=0) @ rows

    def forward(self):
        hidden, lens = self.batch
        pieces = torch.split(hidden, lens)  # HERE
        return torch.stack([self.attend(piece) for piece in pieces])  # HERE

    def next_batch(self):
        hidden, lens = self.batch
        hidden.add_(0.1)
        lens.insert(0, lens.pop())


def make():
    pooler = VarlenPooler()
    return {"step": pooler.forward, "vary": pooler.next_batch, "reset": None}
