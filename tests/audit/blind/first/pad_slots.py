"""Decode over a slot-mapped KV cache, in graphs of fixed batch sizes."""

from types import SimpleNamespace

import torch

from mrv2lab import graphs

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
BACKEND = "cuda" if torch.cuda.is_available() else "emulated"
SLOTS, DIM, GRAPH_SIZE, WINDOW = 12, 4, 4, 3


class Cache:
    def __init__(self) -> None:
        self.kv = torch.zeros(SLOTS, DIM, device=DEVICE)


class Attention:
    def __init__(self, cache: Cache) -> None:
        self.cache = cache
        self.wk = torch.sin(torch.arange(DIM * DIM, device=DEVICE) * 0.9).view(DIM, DIM)

    def __call__(self, x: torch.Tensor, slots: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        self.cache.kv.index_copy_(0, slots, x @ self.wk)
        past = self.cache.kv[table]
        weights = torch.einsum("bd,btd->bt", x, past).softmax(-1)
        return torch.einsum("bt,btd->bd", weights, past)


class Batch:
    def __init__(self, turn: int) -> None:
        owners = ((0, 1), (0, 1, 2, 3), (2, 3), (0, 1, 2, 3), (1, 3))[turn % 5]
        position = (0, 0, 1, 2, 2)[turn % 5]
        ramp = torch.arange(len(owners) * DIM, dtype=torch.float32)
        self.x = torch.cos(ramp * 0.6 + turn).view(-1, DIM).to(DEVICE)
        self.slots = torch.tensor([o * WINDOW + position for o in owners], device=DEVICE)
        self.table = torch.tensor([[o * WINDOW + i for i in range(WINDOW)] for o in owners], device=DEVICE)


class GraphRunner:
    def __init__(self, attention: Attention) -> None:
        self.x = torch.zeros(GRAPH_SIZE, DIM, device=DEVICE)
        self.slots = torch.arange(GRAPH_SIZE, device=DEVICE)
        self.table = torch.zeros(GRAPH_SIZE, WINDOW, dtype=torch.int64, device=DEVICE)
        attention(self.x, self.slots, self.table)
        self.graph = graphs.capture(lambda: attention(self.x, self.slots, self.table), backend=BACKEND)

    def run(self, batch: Batch) -> torch.Tensor:
        count = len(batch.x)
        self.x[:count].copy_(batch.x)
        self.slots[:count].copy_(batch.slots)
        self.table[:count].copy_(batch.table)
        self.graph.replay()
        return self.graph.outputs[:count]


def make_engine():
    cache = Cache()
    attention = Attention(cache)
    runner = GraphRunner(attention)
    state = {"turn": 0, "batch": Batch(0)}

    def at(turn: int):
        state.update(turn=turn, batch=Batch(turn))

    def reset():
        at(0)
        cache.kv.zero_()
        runner.x.zero_()
        runner.slots.copy_(torch.arange(GRAPH_SIZE))
        runner.table.zero_()

    def eager():
        batch = state["batch"]
        return attention(batch.x, batch.slots, batch.table)

    return SimpleNamespace(
        step=lambda: runner.run(state["batch"]),
        vary=lambda: at(state["turn"] + 1),
        reset=reset,
        eager=eager,
        rows=lambda: len(state["batch"].x),
    )


_engine = make_engine()
step, vary, reset, rows = _engine.step, _engine.vary, _engine.reset, _engine.rows
