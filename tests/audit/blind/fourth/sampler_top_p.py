"""Batched sampler of a decode engine: temperature, nucleus filtering, Gumbel-max."""

from dataclasses import dataclass

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
BATCH, HIDDEN, VOCAB = 6, 16, 48
gen = torch.Generator().manual_seed(11)


@dataclass
class Request:
    temperature: float = 1.0
    top_p: float = 1.0


@dataclass
class SamplingMetadata:
    temperature: torch.Tensor
    top_p: torch.Tensor
    gumbel: torch.Tensor
    no_top_p: bool = True

    def fill(self, requests: list[Request]) -> None:
        """Write the parameters of the running requests into the persistent buffers."""
        self.temperature.copy_(torch.tensor([max(r.temperature, 1e-2) for r in requests]))
        self.top_p.copy_(torch.tensor([r.top_p for r in requests]))
        uniform = torch.rand(BATCH, VOCAB, generator=gen).clamp_(1e-6, 1 - 1e-6)
        self.gumbel.copy_(-torch.log(-torch.log(uniform)))
        self.no_top_p = all(r.top_p >= 1.0 for r in requests)


def nucleus(logits: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """Remove the tail of each row whose mass lies beyond top_p."""
    ordered, order = logits.sort(dim=-1, descending=True)
    probs = ordered.softmax(-1)
    before = probs.cumsum(-1) - probs
    ordered = ordered.masked_fill(before > top_p[:, None], float("-inf"))
    return torch.empty_like(logits).scatter_(1, order, ordered)


class Sampler:
    def __init__(self) -> None:
        self.head = (torch.randn(HIDDEN, VOCAB, generator=gen) * 0.5).to(DEVICE)

    def __call__(self, hidden: torch.Tensor, meta: SamplingMetadata) -> dict[str, torch.Tensor]:
        logits = hidden @ self.head
        logits = logits / meta.temperature[:, None]
        if not meta.no_top_p:
            logits = nucleus(logits, meta.top_p)
        logprobs = logits.log_softmax(-1)
        tokens = (logprobs + meta.gumbel).argmax(-1)
        picked = logprobs.gather(1, tokens[:, None]).squeeze(1)
        return {"tokens": tokens, "logprobs": picked}


class Queue:
    """Batches as the scheduler hands them over."""

    def __init__(self) -> None:
        self.at = 0
        self.batches = [
            [Request(0.7)] * BATCH,
            [Request(0.7)] * 3 + [Request(1.2)] * 3,
            [Request(1.0), Request(0.9), Request(1.3, 0.4)] * 2,
            [Request(1.1, 0.2)] * BATCH,
            [Request(0.8)] * BATCH,
            [Request(1.5, 0.5)] * 2 + [Request(0.6)] * 4,
        ]

    def next(self) -> list[Request]:
        self.at = (self.at + 1) % len(self.batches)
        return self.batches[self.at]


queue = Queue()
hidden = torch.randn(BATCH, HIDDEN, generator=gen).to(DEVICE)
meta = SamplingMetadata(
    temperature=torch.ones(BATCH, device=DEVICE),
    top_p=torch.ones(BATCH, device=DEVICE),
    gumbel=torch.zeros(BATCH, VOCAB, device=DEVICE),
)
meta.fill(queue.batches[0])
sampler = Sampler()


def step():
    return sampler(hidden, meta)


def vary():
    hidden.copy_(torch.randn(BATCH, HIDDEN, generator=gen))
    meta.fill(queue.next())
