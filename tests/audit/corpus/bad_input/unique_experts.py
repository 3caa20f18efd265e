"""Only the experts that occur are run: unique() has to know how many there are."""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["host-sync"]
SUBJECTS = ["unique"]


class SparseMoE:
    def __init__(self, tokens=5, dim=4, experts=6):
        torch.manual_seed(0)
        self.x = torch.randn(tokens, dim, device=DEVICE)
        self.w = torch.randn(experts, dim, dim, device=DEVICE)
        self.ids = torch.tensor([1, 4, 4, 0, 1], device=DEVICE)

    def active(self):
        experts, inverse = torch.unique(self.ids, return_inverse=True)  # HERE
        return self.w[experts], inverse

    def forward(self):
        weights, inverse = self.active()  # HERE
        return torch.einsum("td,tde->te", self.x, weights[inverse])


def make():
    layer = SparseMoE()

    def vary():
        layer.ids.copy_((layer.ids + 1) % 6)
        layer.x.add_(0.1)

    return {"step": layer.forward, "vary": vary, "reset": None}
