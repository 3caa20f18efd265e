"""A linear layer with activations quantised per tensor, over batches padded to a graph's size."""

from types import SimpleNamespace

import torch

from mrv2lab import graphs

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
BACKEND = "cuda" if torch.cuda.is_available() else "emulated"
DIM, OUT, SIZES = 8, 5, (4, 8)
QMAX = 15.0


class QuantLinear:
    def __init__(self) -> None:
        ramp = torch.arange(DIM * OUT, dtype=torch.float32, device=DEVICE)
        self.weight = torch.sin(ramp * 0.63).view(DIM, OUT)

    def quantise(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scale = x.abs().amax().clamp(min=1e-6) / QMAX
        return (x / scale).round().clamp(-QMAX, QMAX), scale

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        quantised, scale = self.quantise(x)
        return (quantised @ self.weight) * scale


class PaddedRunner:
    def __init__(self, layer: QuantLinear) -> None:
        self.layer = layer
        self.static = torch.zeros(max(SIZES), DIM, device=DEVICE)
        self.graphs = {size: self._capture(size) for size in reversed(SIZES)}

    def _capture(self, size: int) -> graphs.CapturedGraph:
        inputs = self.static[:size]
        self.layer(inputs)
        return graphs.capture(lambda: self.layer(inputs), backend=BACKEND)

    def run(self, x: torch.Tensor) -> torch.Tensor:
        count = len(x)
        size = next(s for s in SIZES if s >= count)
        self.static[:count].copy_(x)
        graph = self.graphs[size]
        graph.replay()
        return graph.outputs[:count]


class Traffic:
    counts = (4, 8, 3, 2, 6, 1)

    def __init__(self) -> None:
        self.turn = 0
        self.x = self.make()

    def make(self) -> torch.Tensor:
        count = self.counts[self.turn % len(self.counts)]
        values = torch.cos(torch.arange(count * DIM, dtype=torch.float32) * 0.7 + self.turn)
        return (values.view(count, DIM) * (1 + count)).to(DEVICE)

    def next(self) -> None:
        self.turn += 1
        self.x = self.make()


def make_engine():
    traffic, layer = Traffic(), QuantLinear()
    runner = PaddedRunner(layer)

    def reset():
        traffic.turn = 0
        traffic.x = traffic.make()
        runner.static.zero_()

    return SimpleNamespace(
        step=lambda: runner.run(traffic.x),
        vary=traffic.next,
        reset=reset,
        eager=lambda: layer(traffic.x),
        rows=lambda: len(traffic.x),
    )


_engine = make_engine()
step, vary, reset, rows = _engine.step, _engine.vary, _engine.reset, _engine.rows
