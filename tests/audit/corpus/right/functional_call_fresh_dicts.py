"""torch.func.functional_call with a dict of parameters and names made anew in each step, over the same
tensors.
"""

import torch
from torch import nn

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = []
SUBJECTS = []


class Ensemble:
    """One module, several sets of parameters, as in model soups."""

    def __init__(self, members=3, dim=5):
        torch.manual_seed(0)
        self.module = nn.Sequential(nn.Linear(dim, dim), nn.Tanh(), nn.Linear(dim, 2)).to(DEVICE)
        self.module.requires_grad_(False)
        self.members = [
            {name: torch.randn_like(p) for name, p in self.module.named_parameters()} for _ in range(members)
        ]
        self.weights = torch.tensor([0.5, 0.3, 0.2], device=DEVICE)
        self.evaluations = 0

    def parameters_of(self, member):
        return {name: value for name, value in sorted(self.members[member].items(), reverse=True)}

    def forward(self, x):
        self.evaluations += len(self.members)
        outs = [
            torch.func.functional_call(self.module, self.parameters_of(i), (x,))
            for i in range(len(self.members))
        ]
        return torch.einsum("m,mbo->bo", self.weights, torch.stack(outs))


def make():
    ensemble = Ensemble()
    x = torch.randn(4, 5, device=DEVICE)

    def vary():
        x.add_(0.2)
        ensemble.weights.copy_(ensemble.weights.roll(1))
        ensemble.members[0] = dict(reversed(list(ensemble.members[0].items())))

    return {"step": lambda: ensemble.forward(x), "vary": vary, "reset": None}
