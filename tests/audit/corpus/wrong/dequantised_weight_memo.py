"""The dequantised weight is a memo by version; a reload bumps the version and the graph keeps the old one."""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["lost-kernel", "moved-address", "frozen-host-value"]
SUBJECTS = ["version", "dequant", "weight", "mul", "_to_copy"]


class QuantLinear(torch.nn.Module):
    def __init__(self, n_in=8, n_out=6, group=4):
        super().__init__()
        self.group = group
        self.register_buffer("qweight", torch.randint(-8, 8, (n_out, n_in), dtype=torch.int8).to(DEVICE))
        self.register_buffer("scales", torch.rand(n_out, n_in // group).to(DEVICE))
        self.version = 0
        self._memo = (None, None)

    def load(self, qweight, scales):
        self.qweight.copy_(qweight)
        self.scales.copy_(scales)
        self.version += 1

    def dequantise(self):
        version, weight = self._memo
        if version != self.version:  # HERE
            grouped = self.qweight.float().view(len(self.qweight), -1, self.group)  # HERE
            weight = (grouped * self.scales.unsqueeze(-1)).view_as(self.qweight)  # HERE
            self._memo = (self.version, weight)
        return weight

    def forward(self, x):
        return torch.nn.functional.linear(x, self.dequantise())  # HERE


def make():
    torch.manual_seed(0)
    layer = QuantLinear()
    x = torch.randn(3, 8, device=DEVICE)

    def vary():
        x.mul_(0.5)
        layer.load(-layer.qweight, layer.scales + 0.25)

    return {"step": lambda: torch.relu(layer(x)) + 1, "vary": vary, "reset": None}
