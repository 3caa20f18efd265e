"""A linear layer in FP8 with delayed scaling: the scale comes from a history of maxima."""

from types import SimpleNamespace

import torch
from torch.profiler import record_function

TOKENS, IN, OUT = 12, 16, 8
HISTORY = 6
FP8_MAX = 448.0


class DelayedScalingLinear:
    def __init__(self, seed=41):
        self.gen = torch.Generator().manual_seed(seed)
        self.weight = torch.randn(IN, OUT, generator=self.gen) / IN**0.5
        self.bias = torch.zeros(OUT)
        self.history = torch.full((HISTORY,), 6.0)  # from calibration
        self.scale = torch.ones(())
        self.x = torch.zeros(TOKENS, IN)
        self.cursor = 0
        self.tick = 0

    def vary(self):
        self.tick += 1
        self.cursor = (self.cursor + 1) % HISTORY
        gain = 5.0 if self.tick % 5 == 0 else 0.9  # now and then an outlier
        self.x.copy_(gain * torch.randn(TOKENS, IN, generator=self.gen))

    def quantise(self, x):
        self.scale.copy_(FP8_MAX / self.history.amax().clamp(min=1e-3))
        scaled = (x * self.scale).clamp(-FP8_MAX, FP8_MAX)
        return scaled.to(torch.float8_e4m3fn)

    def record(self, x):
        with record_function(f"fp8/amax[{self.cursor}]"):
            self.history.copy_(torch.roll(self.history, 1))
            self.history[0].copy_(x.abs().amax())

    def step(self):
        q = self.quantise(self.x)
        self.record(self.x)
        out = (q.to(torch.float32) / self.scale) @ self.weight
        return out + self.bias


def make():
    layer = DelayedScalingLinear()
    layer.vary()
    return SimpleNamespace(step=layer.step, vary=layer.vary)
