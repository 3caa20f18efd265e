"""Speculative decoding: a head on the first hidden states drafts, the model checks; graphs share a pool."""

from types import SimpleNamespace

import torch

from mrv2lab import graphs

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
BACKEND = "cuda" if torch.cuda.is_available() else "emulated"
TOKENS, DIM, VOCAB = 4, 8, 16


def weights(rows: int, columns: int, rate: float) -> torch.Tensor:
    ramp = torch.arange(rows * columns, dtype=torch.float32, device=DEVICE)
    return torch.sin(ramp * rate).view(rows, columns)


class Stack:
    def __init__(self, depth: int, rate: float) -> None:
        self.layers = [weights(DIM, DIM, rate + 0.1 * i) for i in range(depth)]
        self.head = weights(DIM, VOCAB, rate * 2)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        for weight in self.layers:
            x = torch.tanh(x @ weight)
        return (x @ self.head).softmax(-1)


class Speculator:
    def __init__(self, use_graphs: bool = True) -> None:
        self.draft, self.target = Stack(0, 0.35), Stack(4, 0.9)
        self.hidden = torch.zeros(TOKENS, DIM, device=DEVICE)
        self.turn = 0
        self.load()
        self.graphs = self._capture() if use_graphs else {}

    def _capture(self) -> dict[str, graphs.CapturedGraph]:
        pool = graphs.new_pool(BACKEND)
        made = {}
        for name in ("target", "draft"):
            stack = getattr(self, name)
            stack(self.hidden)
            made[name] = graphs.capture(lambda s=stack: s(self.hidden), backend=BACKEND, pool=pool)
        return made

    def load(self) -> None:
        values = torch.cos(torch.arange(TOKENS * DIM, dtype=torch.float32) * 0.45 + self.turn)
        self.hidden.copy_(values.view(TOKENS, DIM))

    def _probs(self, name: str) -> torch.Tensor:
        if name not in self.graphs:
            return getattr(self, name)(self.hidden)
        self.graphs[name].replay()
        return self.graphs[name].outputs

    def verify(self, use_graphs: bool = True) -> tuple[torch.Tensor, torch.Tensor]:
        if use_graphs:
            draft, target = self._probs("draft"), self._probs("target")
        else:
            draft, target = self.draft(self.hidden), self.target(self.hidden)
        proposed = draft.argmax(-1, keepdim=True)
        ratio = target.gather(1, proposed) / draft.gather(1, proposed)
        return proposed, ratio.clamp(max=1.0)


def make_engine():
    speculator = Speculator()

    def vary():
        speculator.turn += 1
        speculator.load()

    def reset():
        speculator.turn = 0
        speculator.load()

    return SimpleNamespace(
        step=speculator.verify, vary=vary, reset=reset, eager=lambda: speculator.verify(False)
    )


_engine = make_engine()
step, vary, reset = _engine.step, _engine.vary, _engine.reset
