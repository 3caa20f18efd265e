"""AdamW over a flat parameter buffer, with bias correction."""

from dataclasses import dataclass

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SIZE = 12


@dataclass(frozen=True)
class AdamWConfig:
    lr: float = 0.05
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8
    weight_decay: float = 0.01


class FlatBuffer:
    def __init__(self, size: int) -> None:
        self.params = torch.zeros(size, device=DEVICE)
        self.grads = torch.zeros(size, device=DEVICE)
        self.initialise()

    def initialise(self) -> None:
        self.params.copy_(torch.sin(torch.arange(len(self.params), dtype=torch.float32)))
        self.receive(0)

    def receive(self, turn: int) -> None:
        """Gradients of the next micro-step, as they come from the reduce-scatter."""
        ramp = torch.arange(len(self.grads), dtype=torch.float32)
        self.grads.copy_(torch.cos(ramp * 0.5 + turn) * 0.1)


class AdamW:
    def __init__(self, buffer: FlatBuffer, config: AdamWConfig) -> None:
        self.buffer, self.config = buffer, config
        self.exp_avg = torch.zeros_like(buffer.params)
        self.exp_avg_sq = torch.zeros_like(buffer.params)
        self.steps = 0

    def clear(self) -> None:
        self.exp_avg.zero_()
        self.exp_avg_sq.zero_()
        self.steps = 0

    def step(self) -> torch.Tensor:
        c, grads, params = self.config, self.buffer.grads, self.buffer.params
        self.steps += 1
        self.exp_avg.lerp_(grads, 1 - c.beta1)
        self.exp_avg_sq.mul_(c.beta2).addcmul_(grads, grads, value=1 - c.beta2)
        correction1 = 1 - c.beta1**self.steps
        correction2 = 1 - c.beta2**self.steps
        denominator = (self.exp_avg_sq / correction2).sqrt_().add_(c.eps)
        params.mul_(1 - c.lr * c.weight_decay)
        params.addcdiv_(self.exp_avg, denominator, value=-c.lr / correction1)
        return params


def make_engine():
    from types import SimpleNamespace

    buffer = FlatBuffer(SIZE)
    optimizer = AdamW(buffer, AdamWConfig())
    progress = {"turn": 0}

    def vary():
        progress["turn"] += 1
        buffer.receive(progress["turn"])

    def reset():
        progress["turn"] = 0
        optimizer.clear()
        buffer.initialise()

    return SimpleNamespace(step=optimizer.step, vary=vary, reset=reset)


_engine = make_engine()
step, vary, reset = _engine.step, _engine.vary, _engine.reset
