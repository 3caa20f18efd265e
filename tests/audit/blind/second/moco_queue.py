from dataclasses import dataclass

import torch
import torch.nn.functional as F

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@dataclass
class QueueConfig:
    batch: int = 2
    inputs: int = 6
    dim: int = 4
    size: int = 6
    temperature: float = 0.3


class Encoder:
    def __init__(self, config, phase):
        n = torch.arange(config.inputs * config.dim, dtype=torch.float32)
        self.weight = torch.sin(n + phase).view(config.inputs, config.dim).to(DEVICE)

    def __call__(self, x):
        return F.normalize(torch.tanh(x @ self.weight), dim=-1)


class NegativeQueue:
    def __init__(self, config):
        self.keys = torch.zeros(config.size, config.dim, device=DEVICE)
        self.rows = torch.arange(config.batch, device=DEVICE)
        self.config = config
        self.pointer = 0

    def enqueue(self, keys):
        self.keys.index_copy_(0, self.rows, keys)
        self.rows.add_(self.config.batch).remainder_(self.config.size)
        self.pointer = (self.pointer + self.config.batch) % self.config.size


class MomentumContrast:
    def __init__(self, config):
        self.config = config
        self.query, self.key = Encoder(config, 0.0), Encoder(config, 0.2)
        self.queue = NegativeQueue(config)
        self.images = torch.ones(config.batch, config.inputs, device=DEVICE)

    def loss(self):
        q, k = self.query(self.images), self.key(self.images.flip(-1))
        positive = (q * k).sum(dim=-1, keepdim=True)
        logits = torch.cat([positive, q @ self.queue.keys.T], dim=1) / self.config.temperature
        self.queue.enqueue(k)
        self.key.weight.lerp_(self.query.weight, 0.1)
        return -torch.log_softmax(logits, dim=1)[:, 0]


moco = MomentumContrast(QueueConfig())
epochs = iter(range(1, 10_000))


def step():
    return moco.loss()


def embed():
    wide = torch.cat([moco.query(moco.images), moco.key(moco.images)], dim=1)
    return wide @ wide.T


def uniformity():
    gram = moco.queue.keys @ moco.queue.keys.T
    return torch.exp(2 * gram - 2).mean()


beside = [embed, uniformity]


def vary():
    k = next(epochs)
    n = torch.arange(moco.images.numel(), dtype=torch.float32).view_as(moco.images)
    moco.images.copy_(torch.cos(n * 0.5 + k))


def reset():
    global epochs
    epochs = iter(range(1, 10_000))
    moco.images.fill_(1)
    moco.key.weight.copy_(Encoder(moco.config, 0.2).weight)
    moco.queue.keys.zero_()
    moco.queue.rows.copy_(torch.arange(moco.config.batch))
    moco.queue.pointer = 0
