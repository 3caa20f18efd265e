"""The drafter advances a copy.copy of the metadata with out-of-place arithmetic: new tensors for the same
fields.
"""

import copy
from dataclasses import dataclass

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["moved-address"]
SUBJECTS = ["seq_lens", "positions", "slot"]


@dataclass
class AttentionMetadata:
    seq_lens: torch.Tensor
    positions: torch.Tensor
    slot_mapping: torch.Tensor
    num_reqs: int


class Drafter:
    """One layer of an EAGLE-like head over a flat KV cache."""

    def __init__(self, reqs=3, max_len=8, dim=4):
        torch.manual_seed(0)
        self.max_len = max_len
        self.keys = torch.randn(reqs * max_len, dim, device=DEVICE)
        self.hidden = torch.randn(reqs, dim, device=DEVICE)
        base = torch.arange(reqs, device=DEVICE) * max_len
        self.meta = AttentionMetadata(torch.full_like(base, 2), torch.full_like(base, 1), base + 1, reqs)

    def step(self):
        meta = self.meta
        self.keys[meta.slot_mapping] = self.hidden * torch.cos(meta.positions)[:, None]  # HERE
        keys = self.keys.view(meta.num_reqs, self.max_len, -1)
        valid = torch.arange(self.max_len, device=DEVICE) < meta.seq_lens[:, None]  # HERE
        scores = torch.einsum("rd,rtd->rt", self.hidden, keys)
        weights = torch.where(valid, scores, float("-inf")).softmax(-1)
        return torch.einsum("rt,rtd->rd", weights, keys)

    def advance(self):
        meta = copy.copy(self.meta)
        meta.seq_lens = meta.seq_lens + 1
        meta.positions = meta.positions + 1
        meta.slot_mapping = meta.slot_mapping + 1
        self.meta = meta


def make():
    drafter = Drafter()

    def vary():
        drafter.hidden.mul_(0.7)
        drafter.advance()

    return {"step": drafter.step, "vary": vary, "reset": None}
