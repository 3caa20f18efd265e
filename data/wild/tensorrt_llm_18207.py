"""Found with tests that poison static inputs: a replay for requests without images used the position deltas
of the requests before. The runner copies an input into its static buffer if the caller passes it, and does
nothing if not. Repaired by pointing the slots at one that is kept for dummies then.
"""

from types import SimpleNamespace

import torch

PROJECT = "TensorRT-LLM"
LINK = "https://github.com/NVIDIA/TensorRT-LLM/pull/18207"
MECHANISM = "stale-input"
CAUSE = "mrope_delta_read_seq_slots"
LINE = 'if "mrope_delta_read_seq_slots" in inputs:'
EXECUTORS = ("emulated", "cuda")

ROWS, DUMMY_SLOT = 3, 0


class CUDAGraphRunner:
    """Static inputs of a graph, and what it computes from them."""

    def __init__(self, fixed: bool, device: torch.device):
        self.fixed, self.device = fixed, device
        self.position_ids = torch.zeros(ROWS, dtype=torch.int64, device=device)
        self.slots = torch.full((ROWS,), DUMMY_SLOT, dtype=torch.int64, device=device)
        self.deltas = torch.tensor([0, 10, 20, 30]).to(device)  # by slot
        self.frequencies = torch.linspace(0.1, 1, 4, device=device)

    def prepare_replay(self, inputs: dict[str, torch.Tensor]) -> None:
        self.position_ids.copy_(inputs["position_ids"])
        if "mrope_delta_read_seq_slots" in inputs:
            self.slots.copy_(inputs["mrope_delta_read_seq_slots"])
        elif self.fixed:
            self.slots.fill_(DUMMY_SLOT)

    def forward(self, position_ids: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
        return ((position_ids + self.deltas[slots])[:, None] * self.frequencies).cos()

    def eager(self, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        slots = inputs.get("mrope_delta_read_seq_slots", torch.full((ROWS,), DUMMY_SLOT))
        return self.forward(inputs["position_ids"].to(self.device), slots.to(self.device))


def program(fixed: bool, device: torch.device) -> SimpleNamespace:
    runner = CUDAGraphRunner(fixed, device)
    numbers, batches = torch.Generator().manual_seed(0), iter(range(32))
    batch = {"position_ids": torch.zeros(ROWS, dtype=torch.int64)}

    def vary() -> None:
        batch.clear()
        batch["position_ids"] = torch.randint(1, 9, (ROWS,), generator=numbers)
        if next(batches) % 2 == 0:  # requests with images, then requests without
            batch["mrope_delta_read_seq_slots"] = torch.randint(1, 4, (ROWS,), generator=numbers)
        runner.prepare_replay(batch)

    return SimpleNamespace(
        step=lambda: runner.forward(runner.position_ids, runner.slots),
        eager=lambda: runner.eager(batch),
        vary=vary,
        runner=runner,
    )
