"""Expert-parallel MoE layer whose physical experts are rebalanced while serving."""

from types import SimpleNamespace

import torch

TOKENS, WIDTH, LOGICAL, PHYSICAL, TOP = 6, 8, 4, 6, 2


class Placement:
    """Which physical slot holds which logical expert (hot ones have replicas)."""

    def __init__(self):
        self.phy2log = [0, 1, 2, 3, 0, 1]  # host view
        self.log2phy = self.table(self.phy2log)  # LOGICAL, 2
        self.load = torch.zeros(LOGICAL)
        self.epoch = 0

    @staticmethod
    def table(phy2log):
        rows = []
        for e in range(LOGICAL):
            homes = [p for p, l in enumerate(phy2log) if l == e]
            rows.append([homes[0], homes[-1]])
        return torch.tensor(rows)


class MoELayer:
    def __init__(self, seed=53):
        g = self.gen = torch.Generator().manual_seed(seed)
        self.router = torch.randn(WIDTH, LOGICAL, generator=g)
        master = torch.randn(LOGICAL, WIDTH, WIDTH, generator=g) / WIDTH**0.5
        self.place = Placement()
        self.weights = master[torch.tensor(self.place.phy2log)].clone()
        self.x = torch.randn(TOKENS, WIDTH, generator=g)
        self.token_parity = torch.arange(TOKENS) % 2
        self.tick = 0

    def rebalance(self, phy2log):
        """Move the weights in place, then publish the new placement."""
        old = self.place.phy2log
        source = [old.index(expert) for expert in phy2log]
        staged = self.weights[torch.tensor(source)]
        self.weights.copy_(staged)
        self.place.phy2log = list(phy2log)
        self.place.log2phy.copy_(Placement.table(phy2log))
        self.place.load.zero_()
        self.place.epoch += 1

    def vary(self):
        self.tick += 1
        if self.tick == 2:
            self.rebalance([3, 1, 0, 2, 3, 1])
        elif self.tick == 4:
            self.rebalance([2, 2, 1, 0, 0, 3])
        elif self.tick == 6:
            self.rebalance([1, 3, 2, 0, 1, 2])
        self.x.copy_(torch.randn(TOKENS, WIDTH, generator=self.gen))

    def step(self):
        gate, expert = (self.x @ self.router).softmax(-1).topk(TOP, dim=-1)
        gate = gate / gate.sum(-1, keepdim=True)
        ones = torch.ones(TOKENS * TOP)
        self.place.load.index_add_(0, expert.flatten(), ones)
        # odd tokens take the last replica, even ones the first
        homes = self.place.log2phy[expert]  # TOKENS, TOP, 2
        pick = self.token_parity[:, None, None].expand(-1, TOP, 1)
        physical = homes.gather(2, pick).squeeze(2)
        y = torch.einsum("tw,tkwv->tkv", self.x, self.weights[physical]).relu()
        return self.x + (gate[..., None] * y).sum(1)


def make():
    layer = MoELayer()
    return SimpleNamespace(step=layer.step, vary=layer.vary)
