"""Inputs are staged in one of two host buffers while the other one may still be on its way."""

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
TOKENS, VOCAB, DIM = 5, 11, 6


class StagingRing:
    def __init__(self, depth: int = 2) -> None:
        self.slots = [torch.zeros(TOKENS, dtype=torch.int64) for _ in range(depth)]
        self.next = 0

    def acquire(self) -> torch.Tensor:
        slot = self.slots[self.next]
        self.next = (self.next + 1) % len(self.slots)
        return slot


class InputBatch:
    def __init__(self) -> None:
        self.ring = StagingRing()
        self.token_ids = torch.zeros(TOKENS, dtype=torch.int64, device=DEVICE)
        self.staged: torch.Tensor | None = None

    def submit(self, tokens: list[int]) -> None:
        self.staged = self.ring.acquire()
        self.staged[: len(tokens)] = torch.tensor(tokens)
        self.staged[len(tokens) :] = 0
        self.token_ids.copy_(self.staged)


class TinyLM:
    def __init__(self) -> None:
        ramp = torch.arange(VOCAB * DIM, dtype=torch.float32, device=DEVICE)
        self.embedding = torch.sin(ramp * 0.83).view(VOCAB, DIM)
        self.mix = torch.cos(ramp[: DIM * DIM] * 0.3).view(DIM, DIM)

    def __call__(self, token_ids: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.embedding[token_ids] @ self.mix)
        running = hidden.cumsum(0) / torch.arange(1, TOKENS + 1, device=DEVICE)[:, None]
        return running @ self.embedding.t()


class Client:
    def __init__(self, batch: InputBatch) -> None:
        self.batch, self.turn = batch, 0
        self.send()

    def send(self) -> None:
        self.batch.submit([(7 * i + 3 * self.turn) % VOCAB for i in range(2 + self.turn % 4)])


batch, lm = InputBatch(), TinyLM()
client = Client(batch)


def step():
    return lm(batch.token_ids).log_softmax(-1)


def vary():
    client.turn += 1
    client.send()


def reset():
    client.turn = 0
    client.send()
