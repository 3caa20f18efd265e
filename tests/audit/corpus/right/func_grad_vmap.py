"""torch.func transforms over closures that are built anew in every step."""

import torch
from torch.func import grad, vmap

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = []
SUBJECTS = []


class PerSample:
    def __init__(self):
        torch.manual_seed(0)
        self.w = torch.randn(3, device=DEVICE)
        self.x, self.y = torch.randn(5, 3, device=DEVICE), torch.randn(5, device=DEVICE)

    def step(self):
        def loss(w, x, y):
            return (torch.dot(w, x) - y).square()

        grads = vmap(grad(loss), in_dims=(None, 0, 0))(self.w, self.x, self.y)
        return grads / (grads.norm(dim=1, keepdim=True) + 1e-6)


def make():
    samples = PerSample()
    return {"step": samples.step, "vary": lambda: samples.w.add_(0.5), "reset": None}
