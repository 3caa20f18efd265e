"""Mamba hybrids under decode graphs: what a finished request left in the prefix cache gave other logits than
a cold prefill, without an error. At replay the front of a static buffer of track destinations is refilled,
but the whole buffer is handed out as metadata, and the mixer slices its last rows: the captured kernel saves
states to where the never refreshed tail says, slot 0. Repaired by handing out the front.
"""

from types import SimpleNamespace

import torch

PROJECT = "SGLang"
LINK = "https://github.com/sgl-project/sglang/pull/32555"
MECHANISM = "stale-input"
CAUSE = "self.track_indices_buf"
LINE = "track_indices = self.track_indices_buf"
EXECUTORS = ("emulated", "cuda")

MAX_BS, BS, SLOTS = 8, 2, 16


class Backend:
    """Saves the states of decodes to slots of the prefix cache."""

    def __init__(self, fixed: bool, device: torch.device):
        self.fixed = fixed
        self.track_indices_buf = torch.zeros(MAX_BS, dtype=torch.int64, device=device)
        self.states = torch.zeros(BS, device=device)
        self.tracked = torch.zeros(SLOTS, device=device)
        self.wanted = torch.zeros(BS, dtype=torch.int64, device=device)  # of the batch

    def graph_metadata(self) -> torch.Tensor:
        if self.fixed:
            return self.track_indices_buf[:BS]
        track_indices = self.track_indices_buf
        return track_indices

    def save(self, track_indices: torch.Tensor) -> torch.Tensor:
        self.tracked.index_copy_(0, track_indices[-BS:], self.states * 2)
        return self.tracked


def program(fixed: bool, device: torch.device) -> SimpleNamespace:
    backend = Backend(fixed, device)
    served = iter(range(1, SLOTS))

    def vary() -> None:
        n = next(served)
        backend.states.copy_(torch.tensor([n + 0.25, n + 0.5]))
        backend.wanted.copy_(torch.tensor([2 * n % SLOTS, (2 * n + 1) % SLOTS]))
        backend.track_indices_buf[:BS].copy_(backend.wanted)  # as a replay is prepared

    return SimpleNamespace(
        step=lambda: backend.save(backend.graph_metadata()),
        eager=lambda: backend.save(backend.wanted),  # without graphs the metadata has the size of the batch
        vary=vary,
    )
