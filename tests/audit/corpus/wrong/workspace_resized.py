"""Another part of the engine grows the shared workspace after capture, and moves what lies in it."""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["moved-address"]
SUBJECTS = ["buffer", "workspace"]


class Workspace:
    def __init__(self):
        self.buffer = None

    def get(self, size):
        if self.buffer is None or self.buffer.numel() < size:
            old, self.buffer = self.buffer, torch.zeros(size, device=DEVICE)
            if old is not None:
                self.buffer[: old.numel()].copy_(old)
        return self.buffer[:size]  # HERE


def make():
    workspace = Workspace()
    workspace.get(16).fill_(1.0)
    x = torch.arange(16.0, device=DEVICE)

    def step():
        return x * workspace.get(16)  # HERE

    def vary():
        size = workspace.buffer.numel() * 2
        workspace.get(size).add_(1.0)

    return {"step": step, "vary": vary, "reset": None}
