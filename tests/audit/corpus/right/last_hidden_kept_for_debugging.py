"""Every run leaves its hidden states and attention maps on the modules, at new addresses; nothing reads
them back.
"""

import torch
from torch import nn

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = []
SUBJECTS = []


class Attention(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.qk = nn.Linear(dim, dim, bias=False, device=DEVICE)
        self.last_attention = None

    def forward(self, x):
        weights = torch.softmax(self.qk(x) @ x.transpose(-1, -2), dim=-1)
        self.last_attention = weights
        return x + weights @ x


class Inspector:
    """Keeps the latest outputs by module name, as a debugging tool does with hooks."""

    def __init__(self, model):
        self.latest = {}
        for name, module in model.named_modules():
            module.register_forward_hook(lambda m, a, out, name=name: self.latest.__setitem__(name, out))


class Model(nn.Module):
    def __init__(self, dim=6):
        super().__init__()
        self.layers = nn.ModuleList(Attention(dim) for _ in range(2))
        self.last_hidden = None

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        self.last_hidden = x
        return x.mean(0)


def make():
    torch.manual_seed(0)
    model = Model().requires_grad_(False)
    inspector = Inspector(model)
    x = torch.randn(4, 6, device=DEVICE)

    def step():
        return model(x)

    def vary():
        x.mul_(1.3)
        inspector.latest.clear()

    return {"step": step, "vary": vary, "reset": None}
