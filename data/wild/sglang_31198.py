"""Serving Kimi K2.6 with DFlash drafts died of an illegal memory access in its first batch, once prefill was
captured in pieces by default. The MLA backend keeps the metadata of the last prefill, with a flag that sends
its attention to another implementation. Capturing prefill sets it and nobody clears it, so the verify graph,
captured next, records that other attention, whose buffers no verify step fills. Repaired in #32288: verify
steps never look at the flag of a prefill.
"""

from types import SimpleNamespace

import torch

PROJECT = "SGLang"
LINK = "https://github.com/sgl-project/sglang/pull/31198"
MECHANISM = "cross-capture"
CAUSE = "self.fallback"
LINE = "if self.fallback:"
EXECUTORS = ("emulated", "cuda")

ROWS, CONTEXT = 4, 16


class Backend:
    """Attention over a cache, by two implementations with metadata of their own."""

    def __init__(self, device: torch.device):
        self.is_prefill = self.fallback = False
        self.cache = torch.arange(1.0, CONTEXT + 1, device=device)
        self.seq_lens = torch.full((ROWS,), 3, dtype=torch.int64, device=device)  # of verify steps
        self.wrapper_lens = torch.full((ROWS,), CONTEXT, dtype=torch.int64, device=device)  # of prefills

    def init_forward_metadata(self, is_prefill: bool) -> None:
        self.is_prefill = is_prefill
        if is_prefill:
            self.fallback = True  # the pieces of a prefill cannot hold the other implementation

    def forward_extend(self) -> torch.Tensor:
        if self.fallback:
            return self.attend(self.wrapper_lens)
        return self.attend(self.seq_lens)

    def attend(self, lens: torch.Tensor) -> torch.Tensor:
        is_seen = torch.arange(CONTEXT, device=lens.device)[None] < lens[:, None]
        return (self.cache * is_seen).sum(1)


class FixedBackend(Backend):
    """Only a prefill may take the fallback."""

    def forward_extend(self) -> torch.Tensor:
        return self.attend(self.wrapper_lens if self.is_prefill else self.seq_lens)


def program(fixed: bool, device: torch.device) -> SimpleNamespace:
    backend = FixedBackend(device) if fixed else Backend(device)
    lengths = iter(range(4, CONTEXT))

    def capture_prefill() -> torch.Tensor:
        backend.init_forward_metadata(is_prefill=True)
        return backend.forward_extend()

    def verify() -> torch.Tensor:
        backend.init_forward_metadata(is_prefill=False)
        return backend.forward_extend()

    def vary() -> None:
        backend.seq_lens.fill_(next(lengths))

    return SimpleNamespace(step=verify, vary=vary, beside=[("before", capture_prefill)])
