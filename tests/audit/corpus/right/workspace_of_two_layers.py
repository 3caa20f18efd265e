"""Two layers share an empty workspace; each reads only what it wrote, and the tail belongs to nobody."""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = []
SUBJECTS = []


class SharedWorkspace:
    _memory = {}

    @classmethod
    def carve(cls, numel, device):
        """Views of one lazily made arena."""
        arena = cls._memory.get(device)
        if arena is None:
            arena = cls._memory[device] = torch.empty(256, device=device)
        return arena[:numel]


class LowRankLayer(torch.nn.Module):
    def __init__(self, dim, rank):
        super().__init__()
        self.rank = rank
        self.down = torch.nn.Parameter(torch.randn(dim, rank, device=DEVICE))
        self.up = torch.nn.Parameter(torch.randn(rank, dim, device=DEVICE))

    def forward(self, x):
        scratch = SharedWorkspace.carve(x.shape[0] * self.rank, x.device).view(x.shape[0], self.rank)
        torch.mm(x, self.down, out=scratch)
        scratch.tanh_()
        return x + scratch @ self.up


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = LowRankLayer(6, 2), LowRankLayer(6, 4)
        self.peak = 0

    def forward(self, x):
        self.peak = max(self.peak, x.shape[0] * self.second.rank)
        return self.second(self.first(x))


def make():
    SharedWorkspace._memory.clear()
    torch.manual_seed(0)
    model = Model().requires_grad_(False)
    x = torch.randn(5, 6, device=DEVICE)

    def vary():
        x.mul_(0.9)
        SharedWorkspace._memory[x.device][200:].fill_(float(x[0, 0]))

    return {"step": lambda: model(x), "vary": vary, "reset": None}
