"""Fine-tunes the head of a surface-defect classifier with LARS and a stepwise schedule."""

import torch
import torch.nn.functional as F
from torch import nn

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class LARS(torch.optim.Optimizer):
    """Layer-wise adaptive rate scaling with heavy-ball momentum."""

    def __init__(self, params, lr=0.5, momentum=0.9, weight_decay=1e-3, trust=0.5):
        super().__init__(params, dict(lr=lr, momentum=momentum, weight_decay=weight_decay, trust=trust))
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["velocity"] = torch.zeros_like(p)

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                grad = p.grad.add(p, alpha=group["weight_decay"])
                ratio = group["trust"] * p.norm() / (grad.norm() + 1e-6)
                velocity = self.state[p]["velocity"]
                velocity.mul_(group["momentum"]).add_(grad * ratio.clamp(max=10.0))
                p.add_(velocity, alpha=-group["lr"])


class DefectHead(nn.Module):
    def __init__(self, features=24, classes=5):
        super().__init__()
        self.squeeze = nn.Linear(features, 16)
        self.classify = nn.Linear(16, classes)

    def forward(self, x):
        return self.classify(F.gelu(self.squeeze(x)))


class Finetuner:
    def __init__(self, batch=12):
        torch.manual_seed(5)
        self.model = DefectHead().to(DEVICE)
        self.features = torch.randn(batch, 24, device=DEVICE)
        self.labels = torch.arange(batch, device=DEVICE) % 5
        self.optimizer = LARS(self.model.parameters())
        self.scheduler = torch.optim.lr_scheduler.MultiStepLR(self.optimizer, milestones=[3, 8], gamma=0.1)
        self.pretrained = [p.detach().clone() for p in self.model.parameters()]
        self.seen = 0

    def load_batch(self):
        self.seen += 1
        generator = torch.Generator().manual_seed(100 + self.seen)
        self.features.copy_(torch.randn(self.features.shape, generator=generator))
        self.labels.copy_(torch.randint(0, 5, self.labels.shape, generator=generator))

    def train_step(self):
        self.optimizer.zero_grad(set_to_none=False)
        loss = F.cross_entropy(self.model(self.features), self.labels)
        loss.backward()
        self.optimizer.step()
        return loss.detach()


tuner = Finetuner()


def step():
    return tuner.train_step()


def vary():
    tuner.load_batch()
    tuner.scheduler.step()


def reset():
    with torch.no_grad():
        for p, saved in zip(tuner.model.parameters(), tuner.pretrained, strict=True):
            p.copy_(saved)
            tuner.optimizer.state[p]["velocity"].zero_()
