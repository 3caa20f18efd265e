"""Illegal memory accesses with EAGLE drafts, sooner or later (#6309, #8296, #9888). The drafts' graph
advances the positions of all rows in place, one for each draft. A replay for fewer requests writes the front
of the buffer; the rows behind go on from where they are, replay for replay, until they lead out of the table
that positions are looked up in. Repaired by resetting the positions whenever a batch is padded.
"""

from types import SimpleNamespace

import torch

PROJECT = "SGLang"
LINK = "https://github.com/sgl-project/sglang/pull/10892"
MECHANISM = "not-rearmed"
CAUSE = "self.positions"
LINE = "self.positions.add_(1)"
EXECUTORS = ("emulated", "cuda")

BS, STEPS, MAX_POSITIONS = 4, 3, 32


class EagleDraftRunner:
    """Drafts a few tokens for each request, each at the next position."""

    def __init__(self, fixed: bool, device: torch.device):
        self.fixed, self.raw_bs, self.device = fixed, BS, device
        self.positions = torch.zeros(BS, dtype=torch.int64, device=device)
        self.rope = torch.linspace(0, 3, MAX_POSITIONS, device=device).cos()
        self.wanted = torch.zeros(BS, dtype=torch.int64)

    def prepare_replay(self, positions: torch.Tensor) -> None:
        self.raw_bs, self.wanted = len(positions), positions
        if self.fixed and self.raw_bs != BS:
            self.positions.zero_()
        self.positions[: self.raw_bs].copy_(positions)

    def draft(self) -> torch.Tensor:
        hidden = torch.ones(BS, device=self.device)
        for _ in range(STEPS):
            hidden = hidden * 0.5 + self.rope[self.positions]
            self.positions.add_(1)
        return hidden

    def eager(self) -> torch.Tensor:
        positions = self.wanted.to(self.device)  # of the batch, not padded
        hidden = torch.ones(len(positions), device=self.device)
        for step in range(STEPS):
            hidden = hidden * 0.5 + self.rope[positions + step]
        return hidden


def program(fixed: bool, device: torch.device) -> SimpleNamespace:
    runner = EagleDraftRunner(fixed, device)
    numbers, sizes = torch.Generator().manual_seed(0), iter((4, 4, 2, 1, 2, 1, 2, 1, 2) * 4)

    def vary() -> None:
        runner.prepare_replay(torch.randint(16, MAX_POSITIONS - STEPS, (next(sizes),), generator=numbers))

    return SimpleNamespace(
        step=runner.draft,
        eager=runner.eager,
        vary=vary,
        rows=lambda: runner.raw_bs,
        requests=8,
        runner=runner,
    )
