"""Decode with a block manager on the host: free lists, reference counts and statistics of its own."""

from collections import deque
from types import SimpleNamespace

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
NUM_BLOCKS, BLOCK, MAX_BLOCKS, DIM = 8, 2, 4, 4


class BlockManager:
    def __init__(self) -> None:
        self.free = deque(range(NUM_BLOCKS))
        self.owned: list[int] = []
        self.num_allocated = self.num_freed = 0

    def ensure(self, length: int) -> list[int]:
        while len(self.owned) * BLOCK < length:
            self.owned.append(self.free.popleft())
            self.num_allocated += 1
        return self.owned

    def release(self) -> None:
        self.num_freed += len(self.owned)
        self.free.extend(self.owned)
        self.owned = []


class Decoder:
    def __init__(self) -> None:
        self.cache = torch.zeros(NUM_BLOCKS * BLOCK, DIM, device=DEVICE)
        self.table = torch.zeros(MAX_BLOCKS, dtype=torch.int64, device=DEVICE)
        self.position = torch.zeros(1, dtype=torch.int64, device=DEVICE)
        self.x = torch.zeros(1, DIM, device=DEVICE)
        self.launches = 0

    def __call__(self) -> torch.Tensor:
        self.launches += 1
        block = self.table.gather(0, self.position // BLOCK)
        self.cache.index_copy_(0, block * BLOCK + self.position % BLOCK, torch.tanh(self.x))
        slots = (self.table[:, None] * BLOCK + torch.arange(BLOCK, device=DEVICE)).flatten()
        past = self.cache[slots]
        beyond = torch.arange(BLOCK * MAX_BLOCKS, device=DEVICE) > self.position
        weights = (past @ self.x[0]).masked_fill(beyond, float("-inf")).softmax(-1)
        return weights @ past


def make_engine():
    manager, decoder = BlockManager(), Decoder()
    sequence = {"length": 0, "served": 0}

    def schedule() -> None:
        if sequence["length"] == 3:
            manager.release()
            sequence["length"] = 0
        sequence["length"] += 1
        sequence["served"] += 1
        blocks = manager.ensure(sequence["length"])
        decoder.table.zero_()
        decoder.table[: len(blocks)].copy_(torch.tensor(blocks))
        decoder.position.fill_(sequence["length"] - 1)
        decoder.x.copy_(torch.sin(torch.arange(DIM, dtype=torch.float32) + sequence["served"])[None])

    def reset() -> None:
        sequence.update(length=0, served=0)
        manager.__init__()
        decoder.cache.zero_()
        schedule()

    schedule()
    return SimpleNamespace(step=decoder, vary=schedule, reset=reset)


_engine = make_engine()
step, vary, reset = _engine.step, _engine.vary, _engine.reset
