from dataclasses import dataclass

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@dataclass
class MDConfig:
    atoms: int = 6
    cutoff: float = 1.6
    rebuild_every: int = 2
    dt: float = 0.05


class PairList:
    def __init__(self, config: MDConfig):
        self.config = config
        self.pairs = None
        self.trajectory = []

    def build(self, positions):
        distance = torch.cdist(positions, positions).cpu()
        upper = torch.triu(distance < self.config.cutoff, diagonal=1)
        self.pairs = upper.nonzero().T.contiguous().to(DEVICE)
        self.trajectory.append(self.pairs)


class Simulation:
    def __init__(self, config: MDConfig):
        self.config = config
        self.positions = torch.zeros(config.atoms, 2, device=DEVICE)
        self.velocity = torch.zeros_like(self.positions)
        self.neighbors = PairList(config)
        self.frame = 0
        self.scatter(0.0)
        self.neighbors.build(self.positions)

    def scatter(self, angle):
        k = torch.arange(self.config.atoms, dtype=torch.float32)
        radius = 0.6 + 0.35 * k
        place = torch.stack([torch.cos(k * angle) * radius, torch.sin(k * (angle + 1)) * radius], dim=1)
        self.positions.copy_(place)

    def forces(self):
        first, second = self.neighbors.pairs
        delta = self.positions[first] - self.positions[second]
        strength = torch.exp(-delta.square().sum(dim=1, keepdim=True))
        force = torch.zeros_like(self.positions)
        force.index_add_(0, first, strength * delta)
        force.index_add_(0, second, -strength * delta)
        return force, strength.sum()

    def advance(self):
        force, energy = self.forces()
        self.velocity.add_(force, alpha=self.config.dt)
        self.positions.add_(self.velocity, alpha=self.config.dt)
        return self.positions, energy


sim = Simulation(MDConfig())


def step():
    return sim.advance()


def vary():
    sim.frame += 1
    sim.positions.add_(0.01)
    if sim.frame % sim.config.rebuild_every == 0:
        sim.scatter(0.4 * sim.frame)
        sim.neighbors.build(sim.positions)
