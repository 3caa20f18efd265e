"""Attention as a custom op that finds its metadata in the forward context, as engines do."""

from contextlib import contextmanager
from dataclasses import dataclass

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
MAX_TOKENS, DIM = 8, 6
LIBRARY = "engine_ops"


@dataclass
class AttentionMetadata:
    num_actual_tokens: int
    softmax_scale: float = DIM**-0.5


class ForwardContext:
    current: AttentionMetadata | None = None


@contextmanager
def set_forward_context(metadata: AttentionMetadata):
    previous, ForwardContext.current = ForwardContext.current, metadata
    try:
        yield
    finally:
        ForwardContext.current = previous


def unified_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor) -> None:
    metadata = ForwardContext.current
    count = metadata.num_actual_tokens
    scores = q[:count] @ k[:count].t() * metadata.softmax_scale
    causal = torch.ones(count, count, dtype=torch.bool, device=q.device).tril()
    probs = scores.masked_fill(~causal, float("-inf")).softmax(-1)
    out[:count].copy_(probs @ v[:count])


library = torch.library.Library(LIBRARY, "FRAGMENT")
OP = f"unified_attention_{id(ForwardContext)}"
library.define(f"{OP}(Tensor q, Tensor k, Tensor v, Tensor(a!) out) -> ()")
library.impl(OP, unified_attention, "CompositeExplicitAutograd")


class Layer:
    def __init__(self) -> None:
        ramp = torch.arange(DIM * DIM, dtype=torch.float32, device=DEVICE)
        self.wq, self.wk, self.wv = (torch.sin(ramp * r).view(DIM, DIM) for r in (0.2, 0.5, 0.9))
        self.out = torch.zeros(MAX_TOKENS, DIM, device=DEVICE)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        op = getattr(getattr(torch.ops, LIBRARY), OP)
        op(x @ self.wq, x @ self.wk, x @ self.wv, self.out)
        return self.out


class ModelRunner:
    lengths = (3, 5, 2, 8, 6)

    def __init__(self) -> None:
        self.layer = Layer()
        self.x = torch.zeros(MAX_TOKENS, DIM, device=DEVICE)
        self.turn = 0
        self.prepare()

    def prepare(self) -> None:
        self.metadata = AttentionMetadata(self.lengths[self.turn % len(self.lengths)])
        values = torch.cos(torch.arange(MAX_TOKENS * DIM, dtype=torch.float32) * 0.8 + self.turn)
        self.x.copy_(values.view(MAX_TOKENS, DIM))

    def execute(self) -> torch.Tensor:
        with set_forward_context(self.metadata):
            return self.layer(self.x)


runner = ModelRunner()


def step():
    return runner.execute()


def vary():
    runner.turn += 1
    runner.prepare()


def reset():
    runner.turn = 0
    runner.layer.out.zero_()
    runner.prepare()


def rows():
    return runner.metadata.num_actual_tokens
