"""Illegal memory accesses while a server starts. The new model runner warmed up kernels after it had
captured graphs: a warm-up asks for a larger workspace, and the manager grows it by another tensor. The one
that captured graphs write to is freed, and their replays write over what lies there next. Repaired by
warming up before capturing.
"""

from types import SimpleNamespace

import torch

PROJECT = "vLLM"
LINK = "https://github.com/vllm-project/vllm/pull/55341"
MECHANISM = "liveness"
CAUSE = "self.workspace"
LINE = "self.workspace = torch.empty(size, device=self.device)"
EXECUTORS = ("cuda",)  # another tensor must get the memory: the emulator lends freed memory to nobody

ROWS, SMALL, LARGE = 4, 1 << 20, 1 << 22


class WorkspaceManager:
    """One workspace for all kernels, as large as any has asked for."""

    def __init__(self, device: torch.device):
        self.device = device
        self.workspace = torch.empty(0, device=device)

    def get(self, size: int) -> torch.Tensor:
        if len(self.workspace) < size:
            self.workspace = torch.empty(0, device=self.device)  # gives the memory back first
            self.workspace = torch.empty(size, device=self.device)
        return self.workspace[:size]


def program(fixed: bool, device: torch.device) -> SimpleNamespace:
    manager = WorkspaceManager(device)
    numbers = torch.Generator().manual_seed(0)
    hidden = torch.ones(ROWS, 1, device=device)
    engine = SimpleNamespace(is_warm=False, states=[], manager=manager)
    if fixed:
        manager.get(LARGE)  # warms up first

    def step() -> torch.Tensor:
        partial = manager.get(SMALL).view(ROWS, -1)
        partial.copy_(hidden.expand_as(partial))
        return partial.mean(1)

    def vary() -> None:
        if not engine.is_warm:
            manager.get(LARGE)
            engine.states = [torch.zeros(SMALL, device=device) for _ in range(4)]  # of requests
        engine.is_warm = True
        hidden.copy_(torch.rand(ROWS, 1, generator=numbers))

    return SimpleNamespace(step=step, vary=vary, finish=lambda: engine.states, engine=engine)
