"""Causal convolution with state, whose graphs are captured when a batch size first comes."""

from contextlib import contextmanager
from types import SimpleNamespace

import torch

from mrv2lab import graphs

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
BACKEND = "cuda" if torch.cuda.is_available() else "emulated"
SLOTS, WIDTH, DIM = 4, 3, 5


class ConvLayer:
    def __init__(self) -> None:
        self.state = torch.zeros(SLOTS, WIDTH - 1, DIM, device=DEVICE)
        self.kernel = torch.cos(torch.arange(WIDTH * DIM, device=DEVICE) * 0.9).view(WIDTH, DIM)

    def __call__(self, x: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
        window = torch.cat([self.state[slots], x[:, None]], 1)
        self.state.index_copy_(0, slots, window[:, 1:])
        return torch.nn.functional.silu((window * self.kernel).sum(1))


class LazyGraphs:
    def __init__(self, layer: ConvLayer) -> None:
        self.layer = layer
        self.x = torch.zeros(SLOTS, DIM, device=DEVICE)
        self.slots = torch.zeros(SLOTS, dtype=torch.int64, device=DEVICE)
        self.graphs: dict[int, graphs.CapturedGraph] = {}

    @contextmanager
    def preserved(self):
        saved = self.layer.state.clone()
        yield
        self.layer.state.copy_(saved)

    def graph_for(self, size: int) -> graphs.CapturedGraph:
        if size not in self.graphs:

            def forward() -> torch.Tensor:
                return self.layer(self.x[:size], self.slots[:size])

            with self.preserved():
                forward()
                self.graphs[size] = graphs.capture(forward, backend=BACKEND)
        return self.graphs[size]

    def run(self, x: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
        self.x[: len(x)].copy_(x)
        self.slots[: len(x)].copy_(slots)
        graph = self.graph_for(len(x))
        graph.replay()
        return graph.outputs


def make_engine():
    layer = ConvLayer()
    lazy, clock = LazyGraphs(layer), {"turn": 0}
    plans = ([0], [0, 1], [1, 2, 0], [3, 1], [2])

    def inputs() -> tuple[torch.Tensor, torch.Tensor]:
        slots = plans[clock["turn"] % len(plans)]
        x = torch.sin(torch.arange(len(slots) * DIM, device=DEVICE) * 0.8 + clock["turn"])
        return x.view(-1, DIM), torch.tensor(slots, device=DEVICE)

    def vary() -> None:
        clock["turn"] += 1

    def reset() -> None:
        clock["turn"] = 0
        layer.state.zero_()

    return SimpleNamespace(
        step=lambda: lazy.run(*inputs()), vary=vary, reset=reset, eager=lambda: layer(*inputs())
    )


_engine = make_engine()
step, vary, reset = _engine.step, _engine.vary, _engine.reset
