"""Lennard-Jones forces from a neighbour list that the host rebuilds when atoms have moved.

The list has another length after each rebuild. Its room is fixed; what is left over points from the last atom to
itself and has no weight.
"""

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
ATOMS, BOX, ROOM = 20, 5.0, 160


class NeighbourList:
    def __init__(self, room, cutoff, skin):
        self.cutoff, self.skin = cutoff, skin
        self.pairs = torch.empty(2, 0, dtype=torch.long, device=DEVICE)
        self._slots = torch.full((2, room), ATOMS - 1, device=DEVICE)
        self._weight = torch.zeros(room, device=DEVICE)

    def __len__(self):
        return self.pairs.shape[1]

    @property
    def room(self):
        return self._slots.shape[1]

    def rebuild(self, where):
        gap = where[:, None] - where[None]
        gap = gap - BOX * (gap / BOX).round()
        close = gap.norm(dim=-1) < self.cutoff + self.skin
        self.pairs = close.triu(1).nonzero().T[:, : self.room]
        self._slots.fill_(ATOMS - 1)
        self._slots[:, : len(self)].copy_(self.pairs)
        self._weight.zero_()
        self._weight[: len(self)].fill_(1.0)

    def ends(self):
        return self._slots.unbind(0)

    @property
    def weight(self):
        return self._weight[: self.room]


class LennardJones:
    def __init__(self, neighbours):
        self.neighbours = neighbours
        self.where = torch.zeros(ATOMS, 3, device=DEVICE)
        self.evaluations = []

    def evaluate(self):
        self.evaluations.append(len(self.neighbours))
        i, j = self.neighbours.ends()
        gap = self.where[i] - self.where[j]
        gap = gap - BOX * (gap / BOX).round()
        r2 = gap.square().sum(-1).clamp_min(0.6)
        inside = (r2 < self.neighbours.cutoff**2) * self.neighbours.weight
        inv6 = (1.0 / r2) ** 3
        energy = (4.0 * (inv6 * inv6 - inv6) * inside).sum()
        push = (24.0 * (2.0 * inv6 * inv6 - inv6) / r2 * inside)[:, None] * gap
        force = torch.zeros_like(self.where).index_add_(0, i, push).index_add_(0, j, -push)
        return energy, force


gen = torch.Generator().manual_seed(63)
system = LennardJones(NeighbourList(ROOM, cutoff=1.9, skin=0.2))


def vary():
    system.where.copy_(BOX * torch.rand(ATOMS, 3, generator=gen))
    system.neighbours.rebuild(system.where)


vary()


def step():
    energy, force = system.evaluate()
    return {"energy": energy, "force": force}
