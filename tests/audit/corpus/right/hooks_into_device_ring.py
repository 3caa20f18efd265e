"""Forward hooks write activation norms into a ring on the device at a device counter; a host counter runs
beside it.
"""

import torch
from torch import nn

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = []
SUBJECTS = []


class ActivationMonitor:
    def __init__(self, modules, length=4):
        self.ring = torch.zeros(length, len(modules), device=DEVICE)
        self.cursor = torch.zeros(1, dtype=torch.long, device=DEVICE)
        self.hook_calls = 0
        for column, module in enumerate(modules):
            module.register_forward_hook(self.hook(column))

    def hook(self, column):
        def record(module, args, output):
            self.hook_calls += 1
            norm = output.detach().square().mean().sqrt().view(1, 1)
            self.ring[:, column : column + 1].index_copy_(0, self.cursor, norm)

        return record

    def advance(self):
        self.cursor.add_(1).remainder_(len(self.ring))


class Model(nn.Module):
    def __init__(self, dim=6):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(dim, dim, device=DEVICE) for _ in range(3))
        self.monitor = ActivationMonitor(self.layers)

    def forward(self, x):
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        self.monitor.advance()
        return x, self.monitor.ring


def make():
    torch.manual_seed(0)
    model = Model().requires_grad_(False)
    x = torch.randn(2, 6, device=DEVICE)
    return {"step": lambda: model(x), "vary": lambda: x.mul_(1.25), "reset": None}
