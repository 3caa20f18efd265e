"""Validation of a regression net with its own weights and with their running average, in turns.

The average lies in shadow tensors beside the parameters. For a round of validation with the average the two are
exchanged, and afterwards exchanged back, without any copy.
"""

import torch
import torch.nn.functional as F
from torch import nn

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
INPUTS, HIDDEN, BATCH = 7, 14, 10


class Regressor(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(INPUTS, HIDDEN)
        self.outer = nn.Linear(HIDDEN, 1)

    def forward(self, x):
        h = F.gelu(F.linear(x, self.inner.weight, self.inner.bias))
        return F.linear(h, self.outer.weight, self.outer.bias).squeeze(-1)


class RunningAverage:
    def __init__(self, model, keep=0.7):
        self.model, self.keep = model, keep
        self.shadow = {name: p.detach().clone() for name, p in model.named_parameters()}
        self.is_applied = False

    @torch.no_grad()
    def absorb(self):
        for name, p in self.model.named_parameters():
            self.shadow[name].lerp_(p, 1.0 - self.keep)

    def exchange(self):
        for name, p in self.model.named_parameters():
            p.data, self.shadow[name] = self.shadow[name], p.data
        self.is_applied = not self.is_applied


class Trainer:
    """Stands in for the training between two rounds: a kick to each parameter, in place."""

    def __init__(self, model, average, gen):
        self.model, self.average, self.gen = model, average, gen

    @torch.no_grad()
    def some_epochs(self):
        for p in self.model.parameters():
            p.add_(0.4 * torch.randn(p.shape, generator=self.gen).to(DEVICE))
        self.average.absorb()


torch.manual_seed(40)
gen = torch.Generator().manual_seed(41)
model = Regressor().to(DEVICE)
average = RunningAverage(model)
trainer = Trainer(model, average, gen)
inputs = torch.randn(BATCH, INPUTS, generator=gen).to(DEVICE)
targets = torch.randn(BATCH, generator=gen).to(DEVICE)
trainer.some_epochs()


@torch.no_grad()
def step():
    predicted = model(inputs)
    return {"predicted": predicted, "mse": F.mse_loss(predicted, targets)}


def vary():
    if average.is_applied:
        average.exchange()
        trainer.some_epochs()
    else:
        average.exchange()
    inputs.copy_(torch.randn(BATCH, INPUTS, generator=gen))
    targets.copy_(torch.randn(BATCH, generator=gen))
