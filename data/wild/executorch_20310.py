"""With several sessions on one model a replayed decode step can silently use the KV cache of another one,
which is why the engine lets graphs and sessions exclude each other. Before a run the backend binds the
mutable buffers of the active session to the method; the graph holds the pointers of the session that was
active at its capture, and there is one graph. Proposed is a graph for each session, captured at its first
decode step.
"""

from itertools import cycle
from types import SimpleNamespace

import torch

from mrv2lab.graphs import capture

PROJECT = "ExecuTorch"
LINK = "https://github.com/pytorch/executorch/issues/20310"
MECHANISM = "incomplete-key"
CAUSE = "self.graphs"
LINE = 'return "decode"'
EXECUTORS = ("emulated", "cuda")

CONTEXT, DIM = 8, 3


class Session:
    """What belongs to one conversation."""

    def __init__(self, token: int, device: torch.device):
        self.token = token
        position = torch.zeros(1, dtype=torch.int64, device=device)
        self.mutable_buffers = {"kv_cache": torch.zeros(CONTEXT, DIM, device=device), "position": position}


class CudaBackend:
    """One method on one set of weights; sessions lend it their buffers."""

    def __init__(self, fixed: bool, device: torch.device):
        self.fixed, self.backend = fixed, "cuda" if device.type == "cuda" else "emulated"
        self.weight = torch.linspace(-1, 1, DIM * DIM, device=device).view(DIM, DIM)
        self.embedding = torch.ones(1, DIM, device=device)
        self.slots = torch.arange(CONTEXT, device=device)
        self.graphs = {}

    def rebind_for_execute(self, session: Session) -> None:
        self.kv_cache, self.position = session.mutable_buffers.values()

    def decode(self) -> torch.Tensor:
        query = self.embedding @ self.weight
        self.kv_cache.index_copy_(0, self.position, query)
        scores = (query @ self.kv_cache.T).masked_fill(self.slots > self.position, float("-inf"))
        self.position.add_(1)
        return torch.softmax(scores, 1) @ self.kv_cache

    def graph_key(self, session: Session) -> str | tuple[str, int]:
        if self.fixed:
            return "decode", session.token
        return "decode"

    def execute(self, session: Session, cuda_graph: bool) -> torch.Tensor:
        self.rebind_for_execute(session)
        if not cuda_graph:
            return self.decode()
        key = self.graph_key(session)
        if key not in self.graphs:
            kept = self.kv_cache.clone(), self.position.clone()
            self.decode()  # warms up
            self.kv_cache.copy_(kept[0])
            self.position.copy_(kept[1])
            self.graphs[key] = capture(self.decode, backend=self.backend)
        self.graphs[key].replay()
        return self.graphs[key].outputs


def program(fixed: bool, device: torch.device) -> SimpleNamespace:
    backend = CudaBackend(fixed, device)
    sessions = [Session(token, device) for token in range(2)]
    engine = SimpleNamespace(backend=backend, active=sessions[0])
    turns = cycle((0, 1, 1))

    def vary() -> None:
        engine.active = sessions[next(turns)]
        backend.embedding.mul_(1.1)
        backend.embedding[0, engine.active.token] += 0.5

    return SimpleNamespace(
        step=lambda: backend.execute(engine.active, cuda_graph=True),
        eager=lambda: backend.execute(engine.active, cuda_graph=False),
        own_graphs=True,
        vary=vary,
        requests=5,
        engine=engine,
    )
