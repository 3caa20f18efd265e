"""A dispatcher of graphs by batch size and whether any request has an adapter."""

from dataclasses import dataclass
from types import SimpleNamespace

import torch

from mrv2lab import graphs

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
BACKEND = "cuda" if torch.cuda.is_available() else "emulated"
SIZES, DIM, RANK, ADAPTERS = (2, 4), 6, 2, 3


@dataclass(frozen=True)
class BatchKey:
    num_tokens: int
    has_lora: bool


@dataclass
class Batch:
    x: torch.Tensor
    adapters: list[int]

    def key(self) -> BatchKey:
        size = next(s for s in SIZES if s >= len(self.x))
        return BatchKey(size, any(a >= 0 for a in self.adapters))


class LoRALinear:
    def __init__(self) -> None:
        ramp = torch.arange(ADAPTERS * DIM * DIM, dtype=torch.float32, device=DEVICE)
        self.base = torch.sin(ramp[: DIM * DIM] * 0.4).view(DIM, DIM)
        self.a = torch.cos(ramp[: ADAPTERS * DIM * RANK] * 0.9).view(ADAPTERS, DIM, RANK)
        self.b = torch.sin(ramp[: ADAPTERS * DIM * RANK] * 0.7).view(ADAPTERS, RANK, DIM)

    def __call__(self, x: torch.Tensor, adapters: torch.Tensor, has_lora: bool) -> torch.Tensor:
        y = x @ self.base
        if not has_lora:
            return y
        which = adapters.clamp(min=0)
        delta = torch.bmm(torch.bmm(x[:, None], self.a[which]), self.b[which])[:, 0]
        return y + delta * (adapters >= 0)[:, None]


class Dispatcher:
    def __init__(self, layer: LoRALinear) -> None:
        self.layer = layer
        self.x = torch.zeros(max(SIZES), DIM, device=DEVICE)
        self.adapters = torch.full((max(SIZES),), -1, dtype=torch.int64, device=DEVICE)
        self.graphs: dict[BatchKey, graphs.CapturedGraph] = {}

    def _capture(self, key: BatchKey) -> graphs.CapturedGraph:
        def forward() -> torch.Tensor:
            return self.layer(self.x[: key.num_tokens], self.adapters[: key.num_tokens], key.has_lora)

        forward()
        return graphs.capture(forward, backend=BACKEND)

    def run(self, batch: Batch) -> torch.Tensor:
        key, count = batch.key(), len(batch.x)
        self.x[:count].copy_(batch.x)
        self.adapters[:count].copy_(torch.tensor(batch.adapters))
        if key not in self.graphs:
            self.graphs[key] = self._capture(key)
        self.graphs[key].replay()
        return self.graphs[key].outputs[:count]


def make_engine():
    dispatcher, state = Dispatcher(LoRALinear()), {}
    traffic = ([-1, -1], [0, -1, 2], [1], [-1, -1, -1], [2, 0, 1, -1])

    def at(turn: int) -> None:
        adapters = traffic[turn % len(traffic)]
        x = torch.sin(torch.arange(len(adapters) * DIM) * 0.5 + turn).view(-1, DIM)
        state.update(turn=turn, batch=Batch(x.to(DEVICE), adapters))

    def eager() -> torch.Tensor:
        batch = state["batch"]
        return dispatcher.layer(batch.x, torch.tensor(batch.adapters, device=DEVICE), batch.key().has_lora)

    at(0)
    return SimpleNamespace(
        step=lambda: dispatcher.run(state["batch"]),
        vary=lambda: at(state["turn"] + 1),
        reset=lambda: at(0),
        eager=eager,
        rows=lambda: len(state["batch"].x),
    )


_engine = make_engine()
step, vary, reset, rows = _engine.step, _engine.vary, _engine.reset, _engine.rows
