from dataclasses import dataclass

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@dataclass
class BagConfig:
    vocabulary: int = 9
    dim: int = 4
    max_bags: int = 4
    max_ids: int = 16


class BagBuffers:
    def __init__(self, config):
        self.ids = torch.zeros(config.max_ids, dtype=torch.long, device=DEVICE)
        self.bag_of = torch.zeros(config.max_ids, dtype=torch.long, device=DEVICE)
        self.num_ids = torch.ones((), dtype=torch.long, device=DEVICE)
        self.positions = torch.arange(config.max_ids, device=DEVICE)
        self.count, self.bags = 1, 1

    def load(self, bags):
        flat = [i for bag in bags for i in bag]
        owner = [b for b, bag in enumerate(bags) for _ in bag]
        self.ids[: len(flat)].copy_(torch.tensor(flat))
        self.bag_of[: len(flat)].copy_(torch.tensor(owner))
        self.num_ids.fill_(len(flat))
        self.count, self.bags = len(flat), len(bags)


class EmbeddingBags:
    def __init__(self, config):
        self.config = config
        n = torch.arange(config.vocabulary * config.dim, dtype=torch.float32)
        self.table = torch.sin(n).view(config.vocabulary, config.dim).to(DEVICE)
        self.buffers = BagBuffers(config)
        self.gathered = torch.empty(config.max_ids, config.dim, device=DEVICE)

    def launch_size(self):
        capturing = torch.cuda.is_current_stream_capturing()
        return self.config.max_ids if capturing else self.buffers.count

    def forward(self):
        n, b = self.launch_size(), self.buffers
        torch.index_select(self.table, 0, b.ids[:n], out=self.gathered[:n])
        is_real = (b.positions[:n] < b.num_ids)[:, None]
        rows = torch.where(is_real, self.gathered[:n], 0.0)
        pooled = torch.zeros(self.config.max_bags, self.config.dim, device=DEVICE)
        return pooled.index_add_(0, b.bag_of[:n], rows)


layer = EmbeddingBags(BagConfig())
turns = iter(range(10_000))
shapes = [[3, 1], [5, 4, 2], [1], [2, 2, 2, 2]]


def rows():
    return layer.buffers.bags


def step():
    return layer.forward()


def vary():
    k = next(turns)
    lengths = shapes[k % len(shapes)]
    layer.buffers.load([[(k + 2 * i + j) % 9 for i in range(n)] for j, n in enumerate(lengths)])
