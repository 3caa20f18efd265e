"""Prefill in chunks of one size, for which there is one graph."""

from types import SimpleNamespace

import torch

from mrv2lab import graphs

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
BACKEND = "cuda" if torch.cuda.is_available() else "emulated"
CHUNK, DIM, VOCAB = 4, 6, 12


class Encoder(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        table = torch.sin(torch.arange(VOCAB * DIM, dtype=torch.float32) * 0.77).view(VOCAB, DIM)
        mix = torch.cos(torch.arange(DIM * DIM, dtype=torch.float32) * 0.21).view(DIM, DIM)
        self.register_buffer("table", table.to(DEVICE))
        self.register_buffer("mix", mix.to(DEVICE))

    def forward(self, ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        x = self.table[ids] + 0.1 * positions[:, None].sin()
        return torch.tanh(x @ self.mix)


class ChunkGraph:
    def __init__(self, encoder: Encoder) -> None:
        self.ids = torch.zeros(CHUNK, dtype=torch.int64, device=DEVICE)
        self.positions = torch.zeros(CHUNK, dtype=torch.int64, device=DEVICE)
        encoder(self.ids, self.positions)
        self.graph = graphs.capture(lambda: encoder(self.ids, self.positions), backend=BACKEND)

    def run(self, ids: torch.Tensor, start: int) -> torch.Tensor:
        self.ids.copy_(ids)
        self.positions.copy_(torch.arange(start, start + CHUNK))
        self.graph.replay()
        return self.graph.outputs


class Prefill:
    def __init__(self, use_graphs: bool) -> None:
        self.encoder = Encoder()
        self.chunk_graph = ChunkGraph(self.encoder) if use_graphs else None
        self.turn = 0
        self.prompt = self.tokenize()

    def tokenize(self) -> torch.Tensor:
        length = CHUNK * (2 + self.turn % 2)
        return ((torch.arange(length) * 5 + self.turn) % VOCAB).to(DEVICE)

    def next_prompt(self) -> None:
        self.turn += 1
        self.prompt = self.tokenize()

    def _chunk(self, ids: torch.Tensor, start: int) -> torch.Tensor:
        if self.chunk_graph is not None:
            return self.chunk_graph.run(ids, start)
        return self.encoder(ids, torch.arange(start, start + CHUNK, device=DEVICE))

    def run(self) -> torch.Tensor:
        starts = range(0, len(self.prompt), CHUNK)
        hidden = [self._chunk(self.prompt[at : at + CHUNK], at) for at in starts]
        return torch.cat(hidden)

    def run_eager(self) -> torch.Tensor:
        chunk_graph, self.chunk_graph = self.chunk_graph, None
        try:
            return self.run()
        finally:
            self.chunk_graph = chunk_graph


def make_engine():
    prefill = Prefill(use_graphs=True)

    def reset():
        prefill.turn = 0
        prefill.prompt = prefill.tokenize()

    return SimpleNamespace(step=prefill.run, vary=prefill.next_prompt, reset=reset, eager=prefill.run_eager)


_engine = make_engine()
step, vary, reset = _engine.step, _engine.vary, _engine.reset
