"""Data augmentation draws its strength from a numpy generator inside the step."""

import numpy as np
import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["AuditError"]
SUBJECTS = ["random", "rng", "normal", "jitter", "repeat", "differ"]


class Augment:
    def __init__(self, seed=1):
        self.rng = np.random.default_rng(seed)

    def strength(self):
        return float(self.rng.normal(1.0, 0.2))  # HERE

    def __call__(self, x):
        return x * self.strength()  # HERE


class Encoder(torch.nn.Module):
    def __init__(self, dim=5):
        super().__init__()
        self.augment = Augment()
        self.linear = torch.nn.Linear(dim, dim, device=DEVICE)
        self.norm = torch.nn.LayerNorm(dim, device=DEVICE)

    def forward(self, x):
        return self.linear(self.augment(x)) + self.norm(x)  # HERE


def make():
    torch.manual_seed(0)
    encoder = Encoder().requires_grad_(False)
    x = torch.randn(3, 5, device=DEVICE)
    return {"step": lambda: encoder(x), "vary": lambda: x.add_(0.1), "reset": None}
