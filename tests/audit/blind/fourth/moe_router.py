"""Experts choose their tokens, out of a batch that is padded to the size of the buffers."""

import math

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
MAX_TOKENS, HIDDEN, EXPERTS, FACTOR = 12, 16, 3, 1.0
gen = torch.Generator().manual_seed(43)


class ExpertChoice:
    def __init__(self) -> None:
        self.router = torch.randn(HIDDEN, EXPERTS, generator=gen).to(DEVICE)
        self.experts = (torch.randn(EXPERTS, HIDDEN, HIDDEN, generator=gen) / math.sqrt(HIDDEN)).to(DEVICE)
        self.capacity = math.ceil(FACTOR * MAX_TOKENS / EXPERTS)
        self.at = torch.arange(MAX_TOKENS, device=DEVICE)

    def __call__(self, x: torch.Tensor, num_tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scores = (x @ self.router).softmax(-1)
        scores = scores.masked_fill((self.at >= num_tokens)[:, None], -1.0)
        best, chosen = scores.topk(self.capacity, dim=0)
        out, load = x.clone(), []
        for expert in range(EXPERTS):
            gate = best[:, expert].clamp(min=0)
            ids = chosen[:, expert]
            y = torch.nn.functional.gelu(x[ids] @ self.experts[expert])
            out.index_add_(0, ids, y * gate[:, None])
            load.append((gate > 0).sum())
        return out, torch.stack(load)


class Runner:
    def __init__(self) -> None:
        self.layers = [ExpertChoice(), ExpertChoice()]
        self.tokens = torch.zeros(MAX_TOKENS, HIDDEN, device=DEVICE)
        self.num_tokens = torch.zeros((), dtype=torch.long, device=DEVICE)
        self.count = 0
        self.trace: list[tuple[int, int]] = []

    def prepare(self, count: int, spread: float) -> None:
        """Tokens of the next batch at the front of the buffer. What lies behind them is old."""
        self.count = count
        self.num_tokens.fill_(count)
        self.tokens[:count].copy_(torch.randn(count, HIDDEN, generator=gen) * spread)

    def forward(self) -> torch.Tensor:
        self.trace.append((self.count, len(self.layers)))
        x = self.tokens
        for layer in self.layers:
            x, _ = layer(x, self.num_tokens)
            x = torch.nn.functional.layer_norm(x, (HIDDEN,))
        return x


runner = Runner()
plan = [(12, 1.0), (12, 3.0), (4, 1.0), (7, 0.5), (2, 1.0), (9, 2.0)]
batch = 0
runner.prepare(*plan[0])


def step():
    return runner.forward()


def vary():
    global batch
    batch += 1
    runner.prepare(*plan[batch % len(plan)])


def rows():
    return runner.count
