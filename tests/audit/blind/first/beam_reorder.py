"""Beam search that reorders its histories and its cache in place, by way of a shadow copy."""

from dataclasses import dataclass
from types import SimpleNamespace

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
BEAMS, VOCAB, LENGTH, DIM = 3, 9, 6, 4


@dataclass
class BeamState:
    scores: torch.Tensor
    tokens: torch.Tensor
    cache: torch.Tensor

    @classmethod
    def empty(cls) -> "BeamState":
        return cls(
            torch.zeros(BEAMS, device=DEVICE),
            torch.zeros(BEAMS, LENGTH, dtype=torch.int64, device=DEVICE),
            torch.zeros(BEAMS, DIM, device=DEVICE),
        )

    def tensors(self) -> tuple[torch.Tensor, ...]:
        return self.scores, self.tokens, self.cache

    def clear(self) -> None:
        for tensor in self.tensors():
            tensor.zero_()
        self.scores.copy_(-0.37 * torch.arange(BEAMS, dtype=torch.float32))


class BeamDecoder:
    def __init__(self) -> None:
        self.states = [BeamState.empty(), BeamState.empty()]
        self.live = 0
        self.embedding = torch.sin(torch.arange(VOCAB * DIM, device=DEVICE) * 0.9).view(VOCAB, DIM)
        self.bias = torch.zeros(VOCAB, device=DEVICE)

    def clear(self) -> None:
        for state in self.states:
            state.clear()

    def reorder(self, parents: torch.Tensor) -> None:
        live, shadow = self.states[self.live], self.states[1 - self.live]
        for source, target in zip(live.tensors(), shadow.tensors()):
            target.copy_(source[parents])
        for source, target in zip(shadow.tensors(), live.tensors()):
            target.copy_(source)

    def __call__(self) -> tuple[torch.Tensor, ...]:
        state = self.states[self.live]
        logits = state.cache @ self.embedding.t() * 1.7 + self.bias
        total = (state.scores[:, None] + logits.log_softmax(-1)).view(-1)
        best, flat = total.topk(BEAMS)
        self.reorder(flat // VOCAB)
        state.tokens.copy_(state.tokens.roll(1, dims=1))
        state.tokens[:, 0].copy_(flat % VOCAB)
        state.scores.copy_(best)
        state.cache.mul_(0.6).add_(self.embedding[flat % VOCAB])
        return state.tokens, state.scores


def make_engine():
    decoder, clock = BeamDecoder(), {"turn": 0}

    def at(turn: int) -> None:
        clock["turn"] = turn
        decoder.bias.copy_(torch.cos(torch.arange(VOCAB) * 2.1 + turn))

    def reset() -> None:
        decoder.clear()
        at(0)

    reset()
    return SimpleNamespace(step=decoder, vary=lambda: at(clock["turn"] + 1), reset=reset)


_engine = make_engine()
step, vary, reset = _engine.step, _engine.vary, _engine.reset
