from dataclasses import dataclass

import torch
import torch.nn.functional as F

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@dataclass
class TrainConfig:
    n_critic: int = 2
    lr_critic: float = 0.05
    lr_generator: float = 0.1


def parameter(*shape, scale=0.5):
    n = torch.Size(shape).numel()
    values = scale * torch.sin(1.0 + torch.arange(n, dtype=torch.float32)).view(shape)
    return values.to(DEVICE).requires_grad_()


class Generator:
    def __init__(self):
        self.weights = [parameter(3, 5), parameter(5, 4)]

    def __call__(self, z):
        return torch.tanh(z @ self.weights[0]) @ self.weights[1]


class Critic:
    def __init__(self):
        self.weights = [parameter(4, 6), parameter(6, 1)]

    def __call__(self, x):
        return (torch.tanh(x @ self.weights[0]) @ self.weights[1]).squeeze(-1)


class Trainer:
    def __init__(self, config):
        self.config = config
        self.generator, self.critic = Generator(), Critic()
        self.real = torch.ones(4, 4, device=DEVICE)
        self.noise = torch.ones(4, 3, device=DEVICE)
        self.iteration = 0

    def descend(self, loss, weights, lr):
        grads = torch.autograd.grad(loss, weights)
        with torch.no_grad():
            for weight, grad in zip(weights, grads, strict=True):
                weight.sub_(lr * grad)

    def train_step(self):
        fake = self.generator(self.noise)
        loss = F.softplus(-self.critic(self.real)).mean() + F.softplus(self.critic(fake.detach())).mean()
        self.descend(loss, self.critic.weights, self.config.lr_critic)
        if self.iteration % self.config.n_critic == 0:
            fooled = F.softplus(-self.critic(self.generator(self.noise))).mean()
            self.descend(fooled, self.generator.weights, self.config.lr_generator)
        self.iteration += 1
        return loss.detach(), fake.detach()


trainer = Trainer(TrainConfig())
batches = iter(range(1, 10_000))


def step():
    return trainer.train_step()


def vary():
    k = next(batches)
    trainer.real.copy_(torch.cos(torch.arange(16.0) * 0.2 + k).view(4, 4))
    trainer.noise.copy_(torch.sin(torch.arange(12.0) * 0.9 - k).view(4, 3))
