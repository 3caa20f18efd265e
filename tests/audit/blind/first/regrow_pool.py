"""Decode over a KV pool that is made larger when a sequence outgrows it."""

from types import SimpleNamespace

import torch

from mrv2lab import graphs

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
BACKEND = "cuda" if torch.cuda.is_available() else "emulated"
DIM = 4


class KVPool:
    def __init__(self) -> None:
        self.generation = 0
        self.kv = torch.zeros(2, DIM, device=DEVICE)

    def reserve(self, length: int) -> None:
        if length > len(self.kv):
            kept, self.kv = self.kv, torch.zeros(2 * length, DIM, device=DEVICE)
            self.kv[: len(kept)].copy_(kept)
            self.generation += 1


class Model:
    def __init__(self, pool: KVPool) -> None:
        self.pool = pool
        self.x = torch.zeros(DIM, device=DEVICE)
        self.position = torch.zeros(1, dtype=torch.int64, device=DEVICE)

    def __call__(self) -> torch.Tensor:
        kv = self.pool.kv
        kv.index_copy_(0, self.position, self.x[None])
        beyond = torch.arange(len(kv), device=DEVICE) > self.position
        return (kv @ self.x).masked_fill(beyond, float("-inf")).softmax(-1) @ kv


class Runner:
    def __init__(self, model: Model) -> None:
        self.model = model
        self.graph: graphs.CapturedGraph | None = None
        self.generation = -1

    def run(self) -> torch.Tensor:
        if self.generation != self.model.pool.generation:
            self.model()
            self.graph = graphs.capture(self.model, backend=BACKEND)
            self.generation = self.model.pool.generation
        self.graph.replay()
        return self.graph.outputs


class Session:
    def __init__(self) -> None:
        self.pool = KVPool()
        self.model = Model(self.pool)
        self.runner = Runner(self.model)
        self.restart()

    def restart(self) -> None:
        self.length = 0
        self.pool.kv.zero_()
        self.append()

    def append(self) -> None:
        self.length += 1
        self.pool.reserve(self.length)
        self.model.position.fill_(self.length - 1)
        self.model.x.copy_(torch.sin(torch.arange(DIM, dtype=torch.float32) * 0.9 + self.length))


def make_engine():
    session = Session()
    return SimpleNamespace(
        step=session.runner.run, vary=session.append, reset=session.restart, eager=session.model
    )


_engine = make_engine()
step, vary, reset = _engine.step, _engine.vary, _engine.reset
