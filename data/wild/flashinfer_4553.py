"""A server of a mixed NVFP4 and FP8 model went wrong after a while. All cuDNN GEMMs share one workspace,
and one that needs more grows it with `resize_`, which frees its memory and takes other. Graphs captured
before go on using the old memory as scratch, while it belongs to someone else by now. Proposed repair: a
plan that needs more gets a buffer of its own, and the shared one stays where it is.
"""

from types import SimpleNamespace

import torch

PROJECT = "FlashInfer"
LINK = "https://github.com/flashinfer-ai/flashinfer/pull/4553"
MECHANISM = "liveness"
CAUSE = "workspace_buffer"
LINE = "workspace_buffer.resize_(size)"
EXECUTORS = ("cuda",)  # another tensor must get the memory: the emulator lends freed memory to nobody

ROWS, SMALL, LARGE = 4, 1 << 20, 1 << 22


def program(fixed: bool, device: torch.device) -> SimpleNamespace:
    workspace_buffer = torch.empty(SMALL, device=device)
    numbers = torch.Generator().manual_seed(0)
    hidden = torch.ones(ROWS, 1, device=device)
    engine = SimpleNamespace(larger=None, states=[])

    def gemm(size: int) -> torch.Tensor:
        workspace = workspace_buffer
        if workspace_buffer.numel() < size:
            if fixed:
                workspace = engine.larger = torch.empty(size, device=device)
            else:
                workspace_buffer.resize_(size)
        partial = workspace[:size].view(ROWS, -1)
        partial.copy_(hidden.expand_as(partial))
        return partial.mean(1)

    def vary() -> None:
        if not engine.states:
            gemm(LARGE)  # a prefill, which fits no graph
            engine.states = [torch.zeros(SMALL, device=device) for _ in range(4)]  # of requests
        hidden.copy_(torch.rand(ROWS, 1, generator=numbers))

    return SimpleNamespace(step=lambda: gemm(SMALL), vary=vary, finish=lambda: engine.states, engine=engine)
