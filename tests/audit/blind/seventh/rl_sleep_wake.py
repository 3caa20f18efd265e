"""Rollout engine that sleeps between RL updates and wakes with trainer weights."""

import torch
from torch import nn

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
DIM, HIDDEN, ROWS = 16, 32, 5


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(DIM, HIDDEN, bias=False)
        self.down = nn.Linear(HIDDEN, DIM, bias=False)

    def forward(self, x):
        return x + self.down(torch.nn.functional.gelu(self.up(x)))


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([MLP() for _ in range(2)])
        self.norm = nn.LayerNorm(DIM)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)


class SleepController:
    """Level-1 sleep: weights go to host memory, device memory is handed to the trainer."""

    def __init__(self, model):
        self.model = model
        self.backup = {}

    def sleep(self):
        for name, p in self.model.named_parameters():
            self.backup[name] = p.data.to("cpu", copy=True)
            p.data = torch.empty(0, device=p.device)

    def wake(self):
        for name, p in self.model.named_parameters():
            p.data = self.backup.pop(name).to(DEVICE, copy=True)


class Trainer:
    """Stands in for the optimiser on the other side."""

    def __init__(self):
        self.gen = torch.Generator().manual_seed(61)

    def push(self, model):
        with torch.no_grad():
            for p in model.parameters():
                p.add_(0.1 * torch.randn(p.shape, generator=self.gen).to(DEVICE))


class RolloutEngine:
    def __init__(self):
        torch.manual_seed(60)
        self.model = Policy().to(DEVICE).eval()
        self.sleeper = SleepController(self.model)
        self.trainer = Trainer()
        self.hidden = torch.zeros(ROWS, DIM, device=DEVICE)
        self.gen = torch.Generator().manual_seed(62)
        self.requests = 0
        self.load()

    def load(self):
        self.hidden.copy_(torch.randn(ROWS, DIM, generator=self.gen))

    def advance(self):
        self.requests += 1
        if self.requests in (2, 5):
            self.trainer.push(self.model)
        if self.requests == 4:
            self.sleeper.sleep()
            self.sleeper.wake()
        self.load()


engine = RolloutEngine()


@torch.no_grad()
def step():
    return engine.model(engine.hidden)


def vary():
    engine.advance()
