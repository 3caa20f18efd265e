"""Sampling with everything that a service wraps around it: timers, log lines, seeds by request."""

import logging
import time
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
BATCH, VOCAB, DIM = 3, 14, 6
log = logging.getLogger("sampler")


@dataclass
class Request:
    request_id: str
    temperature: float
    seed: int | None = None


class Telemetry:
    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()

    @contextmanager
    def span(self, name: str):
        start = time.perf_counter()
        yield
        self.seconds[name] += time.perf_counter() - start
        self.calls[name] += 1
        log.debug("%s: call %d", name, self.calls[name])


class Sampler:
    def __init__(self, telemetry: Telemetry) -> None:
        self.telemetry = telemetry
        self.temperature = torch.ones(BATCH, device=DEVICE)
        self.generators: dict[int, torch.Generator] = {}

    def admit(self, requests: list[Request]) -> None:
        self.temperature.copy_(torch.tensor([r.temperature for r in requests]))
        self.generators = {
            row: torch.Generator(device=DEVICE).manual_seed(r.seed)
            for row, r in enumerate(requests)
            if r.seed is not None
        }

    def __call__(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with self.telemetry.span("sample"):
            is_greedy = self.temperature < 1e-3
            scale = torch.where(is_greedy, torch.ones_like(self.temperature), self.temperature)
            probs = (logits / scale[:, None]).softmax(-1)
            return probs.argmax(-1), probs


class Service:
    def __init__(self) -> None:
        self.telemetry = Telemetry()
        self.sampler = Sampler(self.telemetry)
        self.head = torch.sin(torch.arange(DIM * VOCAB, device=DEVICE) * 1.7).view(DIM, VOCAB)
        self.hidden = torch.zeros(BATCH, DIM, device=DEVICE)
        self.accept(0)

    def accept(self, turn: int) -> None:
        self.turn = turn
        seeds = [None, turn, 2 * turn]
        self.sampler.admit([Request(f"r{turn}-{i}", 0.4 * i * (1 + turn), s) for i, s in enumerate(seeds)])
        self.hidden.copy_(torch.cos(torch.arange(BATCH * DIM) * 0.8 + turn).view(BATCH, DIM))

    def serve(self) -> tuple[torch.Tensor, torch.Tensor]:
        with self.telemetry.span("serve"):
            return self.sampler(self.hidden @ self.head)


service = Service()


def step():
    return service.serve()


def vary():
    service.accept(service.turn + 1)


def reset():
    service.accept(0)
