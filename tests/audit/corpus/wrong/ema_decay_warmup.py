"""The EMA's decay warms up with a host counter, behind a property."""

import copy

import torch
from torch import nn

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["frozen-host-value"]
SUBJECTS = ["decay", "num_updates"]


class ExponentialMovingAverage:
    def __init__(self, model, max_decay=0.99):
        self.max_decay = max_decay
        self.num_updates = 0
        self.source = list(model.parameters())
        self.shadow = [p.detach().clone() for p in self.source]

    @property
    def decay(self):
        return min(self.max_decay, (1 + self.num_updates) / (10 + self.num_updates))  # HERE

    @torch.no_grad()
    def update(self):
        torch._foreach_lerp_(self.shadow, [p.detach() for p in self.source], 1.0 - self.decay)  # HERE


class Teacher(nn.Module):
    """Student and teacher side by side, as in self-distillation."""

    def __init__(self):
        super().__init__()
        self.student = nn.Linear(6, 4, device=DEVICE)
        self.average = ExponentialMovingAverage(self.student)
        self.view = copy.deepcopy(self.student).requires_grad_(False)
        self.view.weight.data, self.view.bias.data = self.average.shadow

    @torch.no_grad()
    def forward(self, x):
        self.average.update()
        return (self.view(x) - self.student(x)).square().mean(0)


def make():
    torch.manual_seed(0)
    model, x = Teacher(), torch.randn(3, 6, device=DEVICE)

    def vary():
        model.student.weight.data.mul_(1.5)
        model.average.num_updates += 5

    return {"step": lambda: model(x), "vary": vary, "reset": None}
