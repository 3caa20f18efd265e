"""Single-sequence decode over a KV cache that doubles when it is full."""

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
HEADS, DIM = 2, 4


class KVCache:
    def __init__(self, capacity: int) -> None:
        self.keys = torch.zeros(capacity, HEADS, DIM, device=DEVICE)
        self.values = torch.zeros(capacity, HEADS, DIM, device=DEVICE)

    @property
    def capacity(self) -> int:
        return self.keys.shape[0]

    def reserve(self, length: int) -> None:
        if length <= self.capacity:
            return
        size = max(length, 2 * self.capacity)
        for name in ("keys", "values"):
            old = getattr(self, name)
            new = torch.zeros(size, HEADS, DIM, device=DEVICE)
            new[: len(old)].copy_(old)
            setattr(self, name, new)

    def append(self, position: int, key: torch.Tensor, value: torch.Tensor) -> None:
        self.reserve(position + 1)
        self.keys[position].copy_(key)
        self.values[position].copy_(value)


class Decoder:
    def __init__(self) -> None:
        self.cache = KVCache(4)
        self.query = torch.zeros(HEADS, DIM, device=DEVICE)
        self.length = torch.zeros(1, dtype=torch.int64, device=DEVICE)
        self.position = 0
        self.admit(2)

    def admit(self, num_tokens: int) -> None:
        for _ in range(num_tokens):
            base = torch.arange(HEADS * DIM, dtype=torch.float32) + self.position
            self.cache.append(
                self.position, torch.sin(base).view(HEADS, DIM), torch.cos(base).view(HEADS, DIM)
            )
            self.position += 1
        self.query.copy_(torch.sin(torch.arange(HEADS * DIM) * 0.5 + self.position).view(HEADS, DIM))
        self.length.fill_(self.position)

    def attend(self) -> torch.Tensor:
        scores = torch.einsum("hd,thd->ht", self.query, self.cache.keys) / DIM**0.5
        slots = torch.arange(self.cache.capacity, device=DEVICE)
        scores = scores.masked_fill(slots >= self.length, float("-inf"))
        return torch.einsum("ht,thd->hd", scores.softmax(-1), self.cache.values)


def make_engine():
    from types import SimpleNamespace

    decoder = Decoder()

    def reset():
        decoder.position = 0
        decoder.cache.keys.zero_()
        decoder.cache.values.zero_()
        decoder.admit(2)

    return SimpleNamespace(step=decoder.attend, vary=lambda: decoder.admit(1), reset=reset)


_engine = make_engine()
step, vary, reset = _engine.step, _engine.vary, _engine.reset
