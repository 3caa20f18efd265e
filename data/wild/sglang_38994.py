"""Kimi Delta Attention went on with the state indices and accepted counts of warm-up when graphs were on. The
graph runner uses one metadata object for warm-up and capture. The arrays are built by the first layer that
needs them and kept on that object; warm-up builds them, capture finds them there, and no kernel that would
build them anew gets into the graph. Proposed repair: both are dropped at the start of
what is captured.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from types import SimpleNamespace

import torch

PROJECT = "SGLang"
LINK = "https://github.com/sgl-project/sglang/pull/38994"
MECHANISM = "lost-kernel"
CAUSE = "metadata.fused_accept_state_indices"
LINE = "if metadata.fused_accept_state_indices is None:"
EXECUTORS = ("emulated", "cuda")

BATCH, DRAFT_TOKENS, SLOTS, DIM, LAYERS = 2, 3, 6, 4, 2


@dataclass
class ForwardMetadata:
    mamba_cache_indices: torch.Tensor
    fused_accept_state_indices: torch.Tensor | None = None
    fused_accept_num_accepted: torch.Tensor | None = None


class MambaAttnBackend:
    def __init__(self, fixed: bool, device: torch.device):
        self.fixed = fixed
        self.accept_lens_pool = torch.ones(SLOTS, dtype=torch.int64, device=device)
        self.mamba_cache_indices = torch.zeros(BATCH, dtype=torch.int64, device=device)
        self.forward_metadata = self.cuda_graph_metadata = ForwardMetadata(self.mamba_cache_indices)

    def init_forward_metadata(self) -> None:
        self.forward_metadata = ForwardMetadata(self.mamba_cache_indices)

    def init_forward_metadata_in_graph(self) -> None:
        self.forward_metadata = self.cuda_graph_metadata
        if self.fixed:
            self.forward_metadata.fused_accept_state_indices = None
            self.forward_metadata.fused_accept_num_accepted = None

    def accepted(self) -> tuple[torch.Tensor, torch.Tensor]:
        metadata = self.forward_metadata
        if metadata.fused_accept_state_indices is None:
            accepted = self.accept_lens_pool[metadata.mamba_cache_indices]
            metadata.fused_accept_state_indices = metadata.mamba_cache_indices * DRAFT_TOKENS + accepted - 1
            metadata.fused_accept_num_accepted = accepted
        return metadata.fused_accept_state_indices, metadata.fused_accept_num_accepted


class KimiDeltaAttention:
    """A layer with a state for each draft token of each slot."""

    def __init__(self, backend: MambaAttnBackend, seed: int, device: torch.device):
        self.backend, numbers = backend, torch.Generator().manual_seed(seed)
        self.states = torch.randn(SLOTS * DRAFT_TOKENS, DIM, generator=numbers).to(device)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        indices, num_accepted = self.backend.accepted()
        return torch.tanh(hidden + self.states[indices] / num_accepted[:, None])


def program(fixed: bool, device: torch.device) -> SimpleNamespace:
    backend = MambaAttnBackend(fixed, device)
    layers = [KimiDeltaAttention(backend, seed, device) for seed in range(LAYERS)]
    hidden = torch.ones(BATCH, DIM, device=device)
    batches = cycle([([1, 4], [2, 3]), ([4, 1], [1, 2]), ([2, 5], [3, 1])])

    def forward(init: Callable[[], None]) -> torch.Tensor:
        init()
        out = hidden
        for layer in layers:
            out = layer.forward(out)
        return out

    def vary() -> None:
        slots, accepted = next(batches)
        backend.mamba_cache_indices.copy_(torch.tensor(slots))
        backend.accept_lens_pool[slots] = torch.tensor(accepted, device=device)
        hidden.mul_(-1.1)

    step = partial(forward, backend.init_forward_metadata_in_graph)
    eager = partial(forward, backend.init_forward_metadata)
    return SimpleNamespace(step=step, eager=eager, vary=vary, backend=backend)
