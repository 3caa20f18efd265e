"""A cached_property of the step's metadata object gives the number of keys to attend to."""

from functools import cached_property

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["frozen-host-value"]
SUBJECTS = ["max_seq_len", "seq_lens", "metadata"]


class CommonMetadata:
    def __init__(self, seq_lens_cpu, seq_lens):
        self.seq_lens_cpu = seq_lens_cpu
        self.seq_lens = seq_lens

    @cached_property
    def max_seq_len(self):
        return int(max(self.seq_lens_cpu))  # HERE


class MetadataBuilder:
    def __init__(self):
        self.seq_lens = torch.zeros(3, dtype=torch.long, device=DEVICE)

    def build(self, lens):
        self.seq_lens.copy_(torch.tensor(lens))
        return CommonMetadata(tuple(lens), self.seq_lens)


class Attention:
    def __init__(self):
        torch.manual_seed(0)
        self.q, self.k = torch.randn(3, 4, device=DEVICE), torch.randn(3, 32, 4, device=DEVICE)
        self.builder = MetadataBuilder()
        self.metadata = self.builder.build([3, 5, 4])

    def forward(self):
        meta = self.metadata
        keys = self.k[:, : meta.max_seq_len]  # HERE
        scores = (keys @ self.q.unsqueeze(-1)).squeeze(-1)
        ahead = torch.arange(meta.max_seq_len, device=DEVICE) >= meta.seq_lens[:, None]  # HERE
        return scores.masked_fill(ahead, float("-inf")).logsumexp(-1)


def make():
    layer = Attention()

    def vary():
        lens = [n + 4 for n in layer.metadata.seq_lens_cpu]
        layer.metadata = layer.builder.build(lens)

    return {"step": layer.forward, "vary": vary, "reset": None}
