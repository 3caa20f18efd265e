"""Logits of one reward head, the reduction split over programs; the last to come adds up the parts."""

import mrv2lab  # noqa: F401
import torch
import triton
import triton.language as tl

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")

ROWS, WIDTH, SPLITS = 6, 64, 4


@triton.jit
def split_dot(hidden, weight, parts, tickets, scores, turn, WIDTH: tl.constexpr, SPLITS: tl.constexpr):
    row = tl.program_id(0)
    split = tl.program_id(1)
    CHUNK: tl.constexpr = WIDTH // SPLITS
    at = split * CHUNK + tl.arange(0, CHUNK)
    part = tl.sum(tl.load(hidden + row * WIDTH + at) * tl.load(weight + at))
    tl.store(parts + row * SPLITS + split, part)
    ticket = tl.atomic_add(tickets + row, 1)
    if ticket == turn * SPLITS + SPLITS - 1:
        total = tl.sum(tl.load(parts + row * SPLITS + tl.arange(0, SPLITS)))
        tl.store(scores + row, total)


class SplitWorkspace:
    """Scratch shared by all launches. Tickets count up for good, so nothing has to be cleared."""

    def __init__(self) -> None:
        self.parts = torch.zeros(ROWS, SPLITS, device=DEVICE)
        self.tickets = torch.zeros(ROWS, dtype=torch.int32, device=DEVICE)
        self._turn = 0

    def next_turn(self) -> int:
        turn = self._turn
        self._turn += 1
        return turn


class RewardHead:
    def __init__(self, seed: int) -> None:
        gen = torch.Generator().manual_seed(seed)
        self.weight = (torch.randn(WIDTH, generator=gen) * WIDTH**-0.5).to(DEVICE)
        self.scores = torch.zeros(ROWS, device=DEVICE)
        self.workspace = SplitWorkspace()

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        space = self.workspace
        split_dot[(ROWS, SPLITS)](
            hidden,
            self.weight,
            space.parts,
            space.tickets,
            self.scores,
            space.next_turn(),
            WIDTH=WIDTH,
            SPLITS=SPLITS,
        )
        return self.scores


head = RewardHead(seed=17)
hidden = torch.zeros(ROWS, WIDTH, device=DEVICE)
prompts = torch.Generator().manual_seed(1)
hidden.copy_(torch.randn(ROWS, WIDTH, generator=prompts))


def step() -> torch.Tensor:
    return torch.sigmoid(head(hidden))


def vary() -> None:
    hidden.copy_(torch.randn(ROWS, WIDTH, generator=prompts))
