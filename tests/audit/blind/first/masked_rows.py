"""Token embedding and scale as a Triton kernel, launched for the largest batch there can be."""

import mrv2lab  # noqa: F401
import torch
import triton
import triton.language as tl

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
WIDTH, MAX_TOKENS, VOCAB = 8, 6, 10


@triton.jit
def gather_scale_kernel(table_ptr, ids_ptr, count_ptr, out_ptr, WIDTH: tl.constexpr):
    row = tl.program_id(0)
    count = tl.load(count_ptr)
    offsets = tl.arange(0, WIDTH)
    token = tl.load(ids_ptr + row, mask=row < count, other=0)
    values = tl.load(table_ptr + token * WIDTH + offsets, mask=(offsets < WIDTH) & (row < count), other=0.0)
    tl.store(out_ptr + row * WIDTH + offsets, values * 1.5)


class Scheduler:
    """Puts the tokens of a batch into place. Ids behind them are of batches before."""

    def __init__(self) -> None:
        self.ids = torch.full((MAX_TOKENS,), VOCAB * 100, dtype=torch.int64, device=DEVICE)
        self.count = torch.zeros(1, dtype=torch.int64, device=DEVICE)
        self.num_scheduled = 0
        self.turn = 0

    def at(self, turn: int) -> None:
        self.turn = turn
        self.num_scheduled = 1 + (3 * turn + 2) % MAX_TOKENS
        tokens = [(5 * i + turn) % VOCAB for i in range(self.num_scheduled)]
        self.ids[: self.num_scheduled].copy_(torch.tensor(tokens))
        self.count.fill_(self.num_scheduled)


class Embedding:
    def __init__(self) -> None:
        self.table = torch.sin(torch.arange(VOCAB * WIDTH, device=DEVICE) * 0.7).view(VOCAB, WIDTH)
        self.out = torch.empty(MAX_TOKENS, WIDTH, device=DEVICE)
        self.grid = (MAX_TOKENS,)

    def __call__(self, scheduler: Scheduler) -> torch.Tensor:
        gather_scale_kernel[self.grid](self.table, scheduler.ids, scheduler.count, self.out, WIDTH=WIDTH)
        return self.out


scheduler, embedding = Scheduler(), Embedding()
scheduler.at(0)


def step():
    hidden = embedding(scheduler)
    return hidden, hidden.sum(0) / scheduler.count


def vary():
    scheduler.at(scheduler.turn + 1)


def reset():
    scheduler.at(0)
