"""Requests with a frequency penalty went on repeating tokens, without end, when speculation ran in a graph.
The sampler subtracts penalties only where some request of the batch has one; those of the warm-up, which are
captured, have none, so neither the penalties nor the counting of accepted tokens is in the graph. Repaired
by capturing the path of the counts anyway: who has no penalty subtracts zero.
"""

from types import SimpleNamespace

import torch

PROJECT = "TensorRT-LLM"
LINK = "https://github.com/NVIDIA/TensorRT-LLM/pull/15216"
MECHANISM = "lost-kernel"
CAUSE = "has_frequency_penalty"
LINE = "if self.metadata.has_frequency_penalty or self.force_count_capture:"
EXECUTORS = ("emulated", "cuda")

MAX_SLOTS, VOCAB = 4, 6


class SpecMetadata:
    """Sampling parameters of a batch, and the counts of generated tokens by slot."""

    def __init__(self, device: torch.device):
        self.has_frequency_penalty = False
        self.frequency_penalties = torch.zeros(MAX_SLOTS, device=device)
        self.token_counts = torch.zeros(MAX_SLOTS, VOCAB, device=device)
        self.seq_slots = torch.arange(MAX_SLOTS, device=device)

    def prepare(self, penalties: list[float], slots: list[int]) -> None:
        self.has_frequency_penalty = any(penalties)
        self.frequency_penalties.copy_(torch.tensor(penalties))
        self.seq_slots.copy_(torch.tensor(slots))


class SpecWorker:
    """Samples the tokens that a draft is compared with."""

    def __init__(self, fixed: bool, metadata: SpecMetadata, device: torch.device):
        self.force_count_capture, self.metadata = fixed, metadata
        self.logits = torch.ones(MAX_SLOTS, VOCAB, device=device)
        self.vocab = torch.arange(VOCAB, device=device)

    def sample(self) -> torch.Tensor:
        logits, slots = self.logits, self.metadata.seq_slots
        if self.metadata.has_frequency_penalty or self.force_count_capture:
            counts = self.metadata.token_counts[slots]
            logits = logits - counts * self.metadata.frequency_penalties[:, None]
            accepted = logits.argmax(1)
            grown = counts + (accepted[:, None] == self.vocab) * (
                self.metadata.frequency_penalties[:, None] > 0
            )
            self.metadata.token_counts.index_copy_(0, slots, grown)
            return accepted
        return logits.argmax(1)


def program(fixed: bool, device: torch.device) -> SimpleNamespace:
    metadata = SpecMetadata(device)
    worker = SpecWorker(fixed, metadata, device)
    batches = iter([([0.0, 0.0, 0.9, 0.9], [0, 1, 2, 3]), ([0.9, 0.9, 0.0, 0.0], [2, 3, 0, 1])] * 3)

    def vary() -> None:
        metadata.prepare(*next(batches))
        worker.logits.copy_(torch.linspace(0, 1, VOCAB).expand(MAX_SLOTS, VOCAB))
        worker.logits[0, 1].add_(1)

    return SimpleNamespace(step=worker.sample, vary=vary, requests=5, worker=worker)
