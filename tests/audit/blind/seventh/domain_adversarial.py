"""Domain-adversarial feature learning with a gradient reversal layer.

The strength of the reversal is ramped up over training, as in DANN.
"""

import math

import torch
import torch.nn.functional as F

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class GradReverse(torch.autograd.Function):
    """Identity in forward, scaled negation in backward."""

    strength = 0.1

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return grad.neg() * GradReverse.strength


class Ramp:
    """2 / (1 + exp(-gamma p)) - 1 over the progress p in [0, 1]."""

    def __init__(self, total, gamma=10.0):
        self.total = total
        self.gamma = gamma
        self.done = 1

    def advance(self):
        self.done += 1
        p = min(1.0, self.done / self.total)
        GradReverse.strength = 2.0 / (1.0 + math.exp(-self.gamma * p)) - 1.0


class DannTrainer:
    def __init__(self, seed=41):
        self.rng = torch.Generator(device=DEVICE).manual_seed(seed)
        self.encoder = self._weight(10, 16)
        self.classifier = self._weight(16, 4)
        self.critic = self._weight(16, 1)
        self.lr = torch.full((), 0.1, device=DEVICE)
        self.x = torch.empty(32, 10, device=DEVICE)
        self.label = torch.empty(16, dtype=torch.long, device=DEVICE)
        self.domain = torch.cat([torch.zeros(16, 1, device=DEVICE), torch.ones(16, 1, device=DEVICE)])
        self.backup = [p.detach().clone() for p in self.parameters()]
        self.load()

    def _weight(self, rows, cols):
        w = torch.randn(rows, cols, device=DEVICE, generator=self.rng) * rows**-0.5
        return w.requires_grad_(True)

    def parameters(self):
        return [self.encoder, self.classifier, self.critic]

    def load(self):
        self.x.normal_(generator=self.rng)
        self.x[16:].add_(0.7)
        self.label.random_(0, 4, generator=self.rng)

    def update(self):
        z = torch.tanh(self.x @ self.encoder)
        task = F.cross_entropy(z[:16] @ self.classifier, self.label)
        guess = GradReverse.apply(z) @ self.critic
        confusion = F.binary_cross_entropy_with_logits(guess, self.domain)
        grads = torch.autograd.grad(task + confusion, self.parameters())
        with torch.no_grad():
            for p, g in zip(self.parameters(), grads):
                p.sub_(self.lr * g)
        return task.detach(), confusion.detach(), grads[0]


trainer = DannTrainer()
ramp = Ramp(total=20)


def step():
    return trainer.update()


def vary():
    trainer.load()
    ramp.advance()


@torch.no_grad()
def reset():
    for p, b in zip(trainer.parameters(), trainer.backup):
        p.copy_(b)
