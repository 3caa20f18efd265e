"""Mamba-like decode: a recurrent state per request, graphs by batch size."""

from types import SimpleNamespace

import torch

from mrv2lab import graphs

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
BACKEND = "cuda" if torch.cuda.is_available() else "emulated"
SLOTS, DIM = 4, 6


class StateCache:
    def __init__(self) -> None:
        self.ssm = torch.zeros(SLOTS, DIM, device=DEVICE)

    def clear(self) -> None:
        self.ssm.zero_()


class Mixer:
    def __init__(self, cache: StateCache) -> None:
        self.cache = cache
        self.decay = torch.linspace(0.5, 0.9, DIM, device=DEVICE)
        self.out = torch.sin(torch.arange(DIM * DIM, device=DEVICE) * 0.5).view(DIM, DIM)

    def __call__(self, x: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
        state = self.cache.ssm[slots] * self.decay + x
        self.cache.ssm.index_copy_(0, slots, state)
        return torch.tanh(state) @ self.out


class DecodeGraphs:
    def __init__(self, mixer: Mixer) -> None:
        self.mixer = mixer
        self.x = torch.zeros(SLOTS, DIM, device=DEVICE)
        self.slots = torch.zeros(SLOTS, dtype=torch.int64, device=DEVICE)
        self.graphs: dict[int, graphs.CapturedGraph] = {}

    def _capture(self, size: int) -> graphs.CapturedGraph:
        def forward() -> torch.Tensor:
            return self.mixer(self.x[:size], self.slots[:size])

        forward()
        return graphs.capture(forward, backend=BACKEND)

    def run(self, x: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
        size = len(x)
        self.x[:size].copy_(x)
        self.slots[:size].copy_(slots)
        if size not in self.graphs:
            self.graphs[size] = self._capture(size)
        self.graphs[size].replay()
        return self.graphs[size].outputs


class Batches:
    plans = ((0, 1), (0, 1), (0, 1, 2), (1, 2), (0, 1, 2))

    def __init__(self) -> None:
        self.turn = 0

    def current(self) -> tuple[torch.Tensor, torch.Tensor]:
        slots = torch.tensor(self.plans[self.turn % len(self.plans)], device=DEVICE)
        x = torch.sin(torch.arange(len(slots) * DIM, device=DEVICE) * 0.4 + self.turn)
        return x.view(-1, DIM), slots


def make_engine():
    cache, batches = StateCache(), Batches()
    mixer = Mixer(cache)
    decode = DecodeGraphs(mixer)

    def vary():
        batches.turn += 1

    def reset():
        batches.turn = 0
        cache.clear()
        decode.graphs.clear()

    return SimpleNamespace(
        step=lambda: decode.run(*batches.current()),
        vary=vary,
        reset=reset,
        eager=lambda: mixer(*batches.current()),
    )


_engine = make_engine()
step, vary, reset = _engine.step, _engine.vary, _engine.reset
