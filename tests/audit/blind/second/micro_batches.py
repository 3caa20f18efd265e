from dataclasses import dataclass

import torch
import torch.nn.functional as F

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@dataclass
class AccumulationConfig:
    micro_batches: int = 2
    lr: float = 0.2


class Net:
    def __init__(self):
        values = 0.4 * torch.sin(torch.arange(20, dtype=torch.float32))
        self.weight = values.view(5, 4).to(DEVICE).requires_grad_()
        self.bias = torch.zeros(4, device=DEVICE, requires_grad=True)

    @property
    def parameters(self):
        return [self.weight, self.bias]

    def __call__(self, x):
        return torch.tanh(x @ self.weight + self.bias)


class Trainer:
    def __init__(self, config):
        self.config, self.net = config, Net()
        self.inputs = torch.ones(3, 5, device=DEVICE)
        self.targets = torch.zeros(3, 4, device=DEVICE)
        self.grads = [torch.zeros_like(p) for p in self.net.parameters]
        self.micro = 0
        self.fed = 0

    def backward(self):
        loss = F.mse_loss(self.net(self.inputs), self.targets)
        return loss, torch.autograd.grad(loss, self.net.parameters)

    def accumulate(self):
        if self.micro == 0:
            torch._foreach_zero_(self.grads)
        self.micro = (self.micro + 1) % self.config.micro_batches
        loss, grads = self.backward()
        torch._foreach_add_(self.grads, grads)
        return loss.detach()

    @torch.no_grad()
    def apply(self):
        for p, grad in zip(self.net.parameters, self.grads, strict=True):
            p.sub_(grad, alpha=self.config.lr / self.config.micro_batches)

    def feed(self):
        self.fed += 1
        if self.fed % self.config.micro_batches == 0:
            self.apply()
        self.inputs.copy_(torch.sin(torch.arange(15.0) * 0.3 + self.fed).view(3, 5))
        self.targets.copy_(torch.cos(torch.arange(12.0) - self.fed).view(3, 4))


trainer = Trainer(AccumulationConfig())


def step():
    return trainer.accumulate()


def vary():
    trainer.feed()
