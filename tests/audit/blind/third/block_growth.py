"""Paged decode attention: one query a sequence, keys and values in pages."""

import torch
import torch.nn.functional as F

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")

SEQS, PAGE, PAGES, DIM = 3, 4, 64, 8
LONGEST = 44


class PagePool:
    def __init__(self) -> None:
        gen = torch.Generator().manual_seed(11)
        self.keys = torch.randn(PAGES, PAGE, DIM, generator=gen).to(DEVICE)
        self.values = torch.randn(PAGES, PAGE, DIM, generator=gen).to(DEVICE)
        self._free = list(range(1, PAGES))

    def take(self) -> int:
        return self._free.pop(0)

    def give(self, pages: list[int]) -> None:
        self._free.extend(pages)


class BlockTables:
    """Page numbers of every sequence, one row each."""

    def __init__(self, pool: PagePool) -> None:
        self.pool = pool
        self.owned: list[list[int]] = [[] for _ in range(SEQS)]
        self._retired: list[torch.Tensor] = []
        self.pages = torch.zeros(SEQS, 2, dtype=torch.long, device=DEVICE)

    def fit(self, seq: int, tokens: int) -> None:
        owned = self.owned[seq]
        while len(owned) * PAGE < tokens:
            page = self.pool.take()
            if len(owned) == self.pages.shape[1]:
                self._widen()
            self.pages[seq, len(owned)].fill_(page)
            owned.append(page)

    def release(self, seq: int) -> None:
        self.pool.give(self.owned[seq])
        self.owned[seq] = []

    def _widen(self) -> None:
        self._retired.append(self.pages)
        self.pages = F.pad(self.pages, (0, self.pages.shape[1]))


class PagedDecoder:
    def __init__(self) -> None:
        self.pool = PagePool()
        self.tables = BlockTables(self.pool)
        self.lengths = [4, 3, 2]
        self.seq_lens = torch.zeros(SEQS, dtype=torch.long, device=DEVICE)
        self.query = torch.zeros(SEQS, DIM, device=DEVICE)
        self.inputs = torch.Generator().manual_seed(5)
        self._publish()

    def _publish(self) -> None:
        for seq, length in enumerate(self.lengths):
            self.tables.fit(seq, length)
        self.seq_lens.copy_(torch.tensor(self.lengths))
        self.query.copy_(torch.randn(SEQS, DIM, generator=self.inputs))

    def schedule(self) -> None:
        for seq in range(SEQS):
            self.lengths[seq] += 2
            if self.lengths[seq] > LONGEST:
                self.tables.release(seq)
                self.lengths[seq] = 3
        self._publish()

    def attend(self) -> torch.Tensor:
        pages = self.tables.pages
        keys = self.pool.keys[pages].flatten(1, 2)
        values = self.pool.values[pages].flatten(1, 2)
        scores = torch.einsum("sd,skd->sk", self.query, keys) * DIM**-0.5
        places = torch.arange(scores.shape[1], device=DEVICE)
        scores = scores.masked_fill(places >= self.seq_lens[:, None], float("-inf"))
        return torch.einsum("sk,skd->sd", scores.softmax(-1), values)


decoder = PagedDecoder()


def step() -> torch.Tensor:
    return decoder.attend()


def vary() -> None:
    decoder.schedule()
