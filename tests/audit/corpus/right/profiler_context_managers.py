"""Named timing contexts, a call tree and CUDA events where there are any: all host side, none of it work."""

import contextlib
import time

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = []
SUBJECTS = []


class StepProfiler:
    def __init__(self):
        self.seconds, self.calls, self.stack = {}, {}, []
        self.enabled = True

    @contextlib.contextmanager
    def span(self, name):
        self.stack.append(name)
        path = "/".join(self.stack)
        began = time.monotonic()
        try:
            yield
        finally:
            self.stack.pop()
            if self.enabled:
                self.seconds[path] = self.seconds.get(path, 0.0) + time.monotonic() - began
                self.calls[path] = self.calls.get(path, 0) + 1


class Block(torch.nn.Module):
    def __init__(self, profiler, dim=6):
        super().__init__()
        self.profiler = profiler
        self.attn = torch.nn.Linear(dim, dim, device=DEVICE)
        self.mlp = torch.nn.Linear(dim, dim, device=DEVICE)

    def forward(self, x):
        with self.profiler.span("block"):
            with self.profiler.span("attn"):
                x = x + torch.softmax(self.attn(x), dim=0)
            with self.profiler.span("mlp"):
                return x + torch.nn.functional.gelu(self.mlp(x))


def make():
    torch.manual_seed(0)
    profiler = StepProfiler()
    model = torch.nn.Sequential(Block(profiler), Block(profiler)).requires_grad_(False)
    x = torch.randn(4, 6, device=DEVICE)

    def step():
        with profiler.span("step"):
            return model(x)

    def vary():
        x.add_(1)
        profiler.enabled = not profiler.enabled
        profiler.seconds.clear()

    return {"step": step, "vary": vary, "reset": None}
