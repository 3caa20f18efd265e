"""A new metadata object per step by dataclasses.replace, with the same tensors and other request ids and
counts.
"""

import dataclasses

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = []
SUBJECTS = []


@dataclasses.dataclass(frozen=True)
class AttentionMetadata:
    request_ids: tuple
    num_actual_tokens: int
    num_padded_tokens: int
    seq_lens: torch.Tensor
    slot_mapping: torch.Tensor

    def __post_init__(self):
        if self.num_actual_tokens > self.num_padded_tokens:
            raise ValueError("more tokens than the padded batch holds")

    @property
    def summary(self):
        return f"{self.num_actual_tokens}/{self.num_padded_tokens} of {','.join(self.request_ids)}"


class Layer:
    def __init__(self):
        torch.manual_seed(0)
        self.keys = torch.randn(4, 4, device=DEVICE)
        self.cache = torch.zeros(12, 4, device=DEVICE)
        self.meta = AttentionMetadata(
            ("r1", "r2"),
            2,
            4,
            torch.tensor([3, 2, 0, 0], device=DEVICE),
            torch.tensor([2, 7, 11, 11], device=DEVICE),
        )
        self.trace = ""

    def forward(self):
        meta = self.meta
        self.trace = meta.summary
        self.cache.zero_()
        self.cache.index_put_((meta.slot_mapping[: meta.num_padded_tokens],), self.keys, accumulate=True)
        return self.cache.cumsum(0) * meta.seq_lens.sum()


def make():
    layer = Layer()

    def vary():
        layer.meta.seq_lens.add_(1)
        layer.meta.slot_mapping.copy_(layer.meta.slot_mapping.roll(1))
        actual = layer.meta.num_actual_tokens % 4 + 1
        layer.meta = dataclasses.replace(
            layer.meta, num_actual_tokens=actual, request_ids=tuple(f"q{i}{actual}" for i in range(actual))
        )

    return {"step": layer.forward, "vary": vary, "reset": None}
