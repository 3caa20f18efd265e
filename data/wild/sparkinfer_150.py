"""A second use of a model gave wrong logits after a first one had ended. The graph of a decode step is
captured at the first token, and one of its arguments is the row of the block table that belongs to the
sequence. At the end of a session the sequence is freed, but the graph counts as ready still; the next session
gets another row, and replays go by the old one. Repaired by dropping the graph when a sequence is freed.
"""

from collections import deque
from itertools import count
from types import SimpleNamespace

import torch

from mrv2lab.graphs import capture

PROJECT = "sparkinfer"
LINK = "https://github.com/gittensor-ai-lab/sparkinfer/pull/150"
MECHANISM = "moved-address"
CAUSE = "block_table"
LINE = "block_table = self.kv.block_table(self.seq_id)"
EXECUTORS = ("emulated", "cuda")

MAX_SEQS, BLOCKS_PER_SEQ, BLOCK, CONTEXT, NUM_BLOCKS, HIDDEN, TOKENS = 3, 3, 2, 6, 12, 4, 3


class PagedKV:
    def __init__(self, device: torch.device):
        self.cache = torch.zeros(NUM_BLOCKS * BLOCK, HIDDEN, device=device)
        self.tables = torch.zeros(MAX_SEQS, BLOCKS_PER_SEQ, device=device).long()
        self.free_slots, self.free_blocks = deque(range(MAX_SEQS)), deque(range(NUM_BLOCKS))

    def allocate(self) -> int:
        seq_id = self.free_slots.popleft()
        self.tables[seq_id].copy_(torch.tensor([self.free_blocks.popleft() for _ in range(BLOCKS_PER_SEQ)]))
        return seq_id

    def free(self, seq_id: int) -> None:
        self.free_blocks.extend(self.tables[seq_id].tolist())
        self.free_slots.append(seq_id)

    def block_table(self, seq_id: int) -> torch.Tensor:
        return self.tables[seq_id]


class Qwen35Model:
    def __init__(self, fixed: bool, device: torch.device):
        self.backend = "cuda" if device.type == "cuda" else "emulated"
        self.fixed, self.kv, self.graph_ready = fixed, PagedKV(device), False
        self.every, self.embeds = torch.arange(CONTEXT, device=device), torch.ones(1, HIDDEN, device=device)
        self.position, self.seq_id = torch.zeros_like(self.every[:1]), self.kv.allocate()

    def end_session(self) -> None:
        self.kv.free(self.seq_id)
        if self.fixed:
            self.graph_ready = False

    def start_session(self, prompt: torch.Tensor) -> None:
        self.seq_id = self.kv.allocate()
        self.kv.cache.index_copy_(0, self.slots()[: len(prompt)], prompt)
        self.position.fill_(len(prompt) - 1)

    def slots(self) -> torch.Tensor:
        block_table = self.kv.block_table(self.seq_id)
        return block_table[self.every // BLOCK] * BLOCK + self.every % BLOCK

    def decode(self) -> torch.Tensor:
        slots = self.slots()
        self.kv.cache.index_copy_(0, slots[self.position], self.embeds)
        scores = (self.embeds @ self.kv.cache[slots].t()).masked_fill(self.every > self.position, -1e9)
        return torch.softmax(scores, 1) @ self.kv.cache[slots]

    def forward_token(self) -> torch.Tensor:
        if not self.graph_ready:
            self.decode()
            self.graph, self.graph_ready = capture(self.decode, backend=self.backend), True
        self.graph.replay()
        return self.graph.outputs


def program(fixed: bool, device: torch.device) -> SimpleNamespace:
    model, numbers, tokens = Qwen35Model(fixed, device), torch.Generator().manual_seed(0), count(1)

    def vary() -> None:
        if next(tokens) % TOKENS == 0:
            model.end_session()
            model.start_session(torch.randn(2, HIDDEN, generator=numbers).to(device))
        model.embeds.copy_(torch.randn(1, HIDDEN, generator=numbers))
        model.position.add_(1)

    step, eager = model.forward_token, model.decode
    return SimpleNamespace(step=step, eager=eager, own_graphs=True, vary=vary, requests=6, model=model)
