"""DiffusionGemma with whole graphs: which requests attend causally, and which both ways, stayed as it was
when the graphs were captured. The flags are kept as booleans in a persistent buffer, but the metadata
builder casts them to integers, which makes a new tensor at each step; the graph reads the one of its
capture. Repaired in 0.32.0 by a buffer of integers, which needs no cast.
"""

from types import SimpleNamespace

import torch

PROJECT = "vLLM"
LINK = "https://github.com/vllm-project/vllm/pull/51994"
MECHANISM = "moved-address"
CAUSE = "causal"
LINE = "causal = causal.to(torch.int32)"
EXECUTORS = ("emulated", "cuda")

REQUESTS, TOKENS = 3, 5


class AttentionMetadataBuilder:
    """Makes the metadata of a step from persistent buffers."""

    def __init__(self, causal_buf: torch.Tensor):
        self.causal_buf = causal_buf

    def build(self) -> SimpleNamespace:
        causal = self.causal_buf
        if causal.dtype != torch.int32:
            causal = causal.to(torch.int32)
        return SimpleNamespace(causal=causal)


def program(fixed: bool, device: torch.device) -> SimpleNamespace:
    numbers = torch.Generator().manual_seed(0)
    causal_buf = torch.zeros(REQUESTS, dtype=torch.int32 if fixed else torch.bool, device=device)
    builder = AttentionMetadataBuilder(causal_buf)
    hidden = torch.ones(REQUESTS, TOKENS, 2, device=device)
    engine = SimpleNamespace(metadata=builder.build(), builder=builder)

    def step() -> torch.Tensor:
        tokens = torch.arange(TOKENS, device=hidden.device)
        is_later = (tokens[None] > tokens[:, None]) & (engine.metadata.causal[:, None, None] != 0)
        scores = (hidden @ hidden.mT).masked_fill(is_later, float("-inf"))
        return torch.softmax(scores, 2) @ hidden

    def vary() -> None:
        causal_buf.copy_(torch.randint(0, 2, (REQUESTS,), generator=numbers) > 0)
        hidden.copy_(torch.rand(REQUESTS, TOKENS, 2, generator=numbers))
        engine.metadata = builder.build()

    return SimpleNamespace(step=step, vary=vary, engine=engine)
