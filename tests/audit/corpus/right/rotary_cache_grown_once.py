"""The rotary table is grown lazily to the model's maximum at the first call; the length asked for changes
later.
"""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = []
SUBJECTS = []


class Rotary(torch.nn.Module):
    def __init__(self, dim, max_position=32):
        super().__init__()
        self.dim, self.max_position = dim, max_position
        self.table = None
        self.asked = 0

    def ensure(self, length):
        self.asked = max(self.asked, length)
        if self.table is not None and len(self.table) >= length:
            return self.table
        size = max(self.max_position, length)
        inv = 10000.0 ** (-torch.arange(0, self.dim, 2, device=DEVICE) / self.dim)
        angle = torch.arange(size, device=DEVICE)[:, None] * inv
        self.table = torch.cat([angle.cos(), angle.sin()], dim=-1)
        return self.table

    def forward(self, x, positions, length):
        cos, sin = self.ensure(length)[positions].chunk(2, dim=-1)
        a, b = x.chunk(2, dim=-1)
        return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)


class Request:
    def __init__(self):
        self.tokens = list(range(5))
        self.positions = torch.arange(5, device=DEVICE)
        self.x = torch.randn(5, 8, device=DEVICE)


def make():
    torch.manual_seed(0)
    rotary, request = Rotary(8), Request()

    def step():
        return rotary(request.x, request.positions, len(request.tokens)).square().cumsum(0)

    def vary():
        request.tokens.extend([1, 2, 3])
        request.positions.add_(3)
        request.x.sin_()

    return {"step": step, "vary": vary, "reset": None}
