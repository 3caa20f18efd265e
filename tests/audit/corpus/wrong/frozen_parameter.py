"""Parameters that do not require a gradient are left out of the update; one is frozen later."""

import torch
from torch import nn

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["frozen-host-value", "lost-kernel"]
SUBJECTS = ["requires_grad", "grads", "bias", "layer"]


class Finetune:
    def __init__(self):
        torch.manual_seed(0)
        self.layer = nn.Linear(3, 2).to(DEVICE)
        self.x = torch.randn(5, 3, device=DEVICE)

    def step(self):
        with torch.enable_grad():
            params = [p for p in self.layer.parameters() if p.requires_grad]  # HERE
            grads = torch.autograd.grad(self.layer(self.x).square().mean(), params)  # HERE
        with torch.no_grad():
            for p, g in zip(params, grads):
                p.sub_(g, alpha=0.1)  # HERE
        return self.layer.weight.detach(), self.layer.bias.detach()


def make():
    tuning = Finetune()

    def vary():
        tuning.layer.bias.requires_grad_(not tuning.layer.bias.requires_grad)

    return {"step": tuning.step, "vary": vary, "reset": None}
