"""Greedy decoding that goes on from its own tokens; positions live on the device."""

import torch
from torch import nn

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")

BATCH, CONTEXT, DIM, VOCAB = 3, 32, 8, 20


class DecodeState:
    def __init__(self) -> None:
        self.tokens = torch.zeros(BATCH, dtype=torch.long, device=DEVICE)
        self.positions = torch.zeros(BATCH, dtype=torch.long, device=DEVICE)
        self.keys = torch.zeros(BATCH, CONTEXT, DIM, device=DEVICE)
        self.values = torch.zeros(BATCH, CONTEXT, DIM, device=DEVICE)
        self.emitted = 0
        self.clear()

    def clear(self) -> None:
        self.tokens.copy_(torch.arange(1, BATCH + 1))
        self.positions.zero_()
        self.keys.zero_()
        self.values.zero_()
        self.emitted = 0

    def advance(self, tokens: torch.Tensor) -> None:
        self.tokens.copy_(tokens)
        self.positions.add_(1).clamp_(max=CONTEXT - 1)
        self.emitted += BATCH


class TinyDecoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        gen = torch.Generator().manual_seed(111)
        self.register_buffer("embed", torch.randn(VOCAB, DIM, generator=gen))
        self.register_buffer("qkv", torch.randn(DIM, 3 * DIM, generator=gen) * DIM**-0.5)
        self.register_buffer("turn", torch.randn(CONTEXT, DIM, generator=gen) * 0.5)
        self.register_buffer("batch", torch.arange(BATCH))
        self.register_buffer("places", torch.arange(CONTEXT))

    def forward(self, state: DecodeState, bias: torch.Tensor) -> torch.Tensor:
        hidden = self.embed[state.tokens] + self.turn[state.positions]
        q, k, v = (hidden @ self.qkv).chunk(3, dim=-1)
        state.keys[self.batch, state.positions] = k
        state.values[self.batch, state.positions] = v
        scores = torch.einsum("bd,bcd->bc", q, state.keys) * DIM**-0.5
        scores = scores.masked_fill(self.places > state.positions[:, None], float("-inf"))
        hidden = hidden + torch.einsum("bc,bcd->bd", scores.softmax(-1), state.values)
        return hidden @ self.embed.T + bias


class Engine:
    def __init__(self) -> None:
        self.model = TinyDecoder().to(DEVICE)
        self.state = DecodeState()
        self.bias = torch.zeros(BATCH, VOCAB, device=DEVICE)
        self.wanted = torch.Generator().manual_seed(112)
        self.throughput: list[int] = []

    @torch.inference_mode()
    def decode(self) -> torch.Tensor:
        logits = self.model(self.state, self.bias)
        self.state.advance(logits.argmax(dim=-1))
        return logits

    def steer(self) -> None:
        self.throughput.append(self.state.emitted)
        self.bias.copy_(torch.randn(BATCH, VOCAB, generator=self.wanted))


engine = Engine()


def step() -> torch.Tensor:
    return engine.decode()


def vary() -> None:
    engine.steer()


def reset() -> None:
    engine.state.clear()
