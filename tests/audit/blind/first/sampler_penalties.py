"""Greedy sampler with presence and repetition penalties."""

from dataclasses import dataclass

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
VOCAB, HIDDEN, BATCH = 24, 8, 3


@dataclass
class SamplingParams:
    presence: float = 0.0
    repetition: float = 1.0


@dataclass
class SamplingMetadata:
    presence: torch.Tensor
    repetition: torch.Tensor
    output_mask: torch.Tensor
    no_penalties: bool = True

    def update(self, params: list[SamplingParams], outputs: list[list[int]]) -> None:
        self.presence.copy_(torch.tensor([p.presence for p in params]))
        self.repetition.copy_(torch.tensor([p.repetition for p in params]))
        self.output_mask.zero_()
        for row, tokens in enumerate(outputs):
            for token in tokens:
                self.output_mask[row, token] = 1.0
        self.no_penalties = all(p == SamplingParams() for p in params)


class Sampler:
    def __init__(self) -> None:
        self.metadata = SamplingMetadata(
            presence=torch.zeros(BATCH, device=DEVICE),
            repetition=torch.ones(BATCH, device=DEVICE),
            output_mask=torch.zeros(BATCH, VOCAB, device=DEVICE),
        )

    def penalise(self, logits: torch.Tensor) -> torch.Tensor:
        md = self.metadata
        scale = torch.where(md.output_mask > 0, md.repetition[:, None], torch.ones_like(logits))
        logits = torch.where(logits > 0, logits / scale, logits * scale)
        return logits - md.presence[:, None] * md.output_mask

    def __call__(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if not self.metadata.no_penalties:
            logits = self.penalise(logits)
        return logits.argmax(-1), logits.log_softmax(-1)


class Engine:
    def __init__(self) -> None:
        self.head = torch.sin(torch.arange(HIDDEN * VOCAB, device=DEVICE) * 0.7).view(HIDDEN, VOCAB)
        self.hidden = torch.zeros(BATCH, HIDDEN, device=DEVICE)
        self.sampler = Sampler()
        self.turn = 0
        self.load(0)

    def load(self, turn: int) -> None:
        values = torch.cos(torch.arange(BATCH * HIDDEN, dtype=torch.float32) + turn)
        self.hidden.copy_(values.view(BATCH, HIDDEN))
        params = [SamplingParams(0.5 * (turn % 2), 1.0 + 0.2 * turn) for _ in range(BATCH)]
        self.sampler.metadata.update(params, [[turn, 5, 9], [2 + turn], [11, 7]])


engine = Engine()


def step():
    return engine.sampler(engine.hidden @ engine.head)


def vary():
    engine.turn += 1
    engine.load(engine.turn)


def reset():
    engine.turn = 0
    engine.load(0)
