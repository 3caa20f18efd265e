"""The dequantised weight is a memo by version as well, but a reload refreshes it in place before the next
step.
"""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = []
SUBJECTS = []


class QuantLinear(torch.nn.Module):
    def __init__(self, n_in=8, n_out=6):
        super().__init__()
        self.register_buffer("qweight", torch.randint(-8, 8, (n_out, n_in), dtype=torch.int8).to(DEVICE))
        self.register_buffer("scale", torch.rand(n_out, 1).to(DEVICE))
        self.version = 0
        self._memo_version = None
        self._weight = None

    def load(self, qweight, scale):
        self.qweight.copy_(qweight)
        self.scale.copy_(scale)
        self.version += 1
        if self._weight is not None:
            torch.mul(self.qweight.float(), self.scale, out=self._weight)
            self._memo_version = self.version

    def dequantised(self):
        if self._memo_version != self.version:
            self._weight = self.qweight.float() * self.scale
            self._memo_version = self.version
        return self._weight

    def forward(self, x):
        return torch.nn.functional.linear(x, self.dequantised())


def make():
    torch.manual_seed(0)
    layers = torch.nn.ModuleList(QuantLinear(8, 8) for _ in range(2))
    x = torch.randn(3, 8, device=DEVICE)

    def step():
        h = x
        for layer in layers:
            h = torch.relu(layer(h)) + 1
        return h

    def vary():
        for layer in layers:
            layer.load(-layer.qweight, layer.scale + 0.25)

    return {"step": step, "vary": vary, "reset": None}
