"""Molecular dynamics of a cold argon cluster, with pair forces worked out a few rows at a time."""

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
ATOMS, DT = 27, 0.004


class Budget:
    """How many rows of the table of pairs fit into what is left of the memory."""

    def __init__(self, rows=27):
        self.rows = rows

    def share(self, tenants):
        self.rows = max(2, ATOMS // tenants)

    def slices(self):
        for begin in range(0, ATOMS, self.rows):
            yield slice(begin, min(begin + self.rows, ATOMS))


class Cluster:
    def __init__(self, budget):
        self.budget = budget
        line = torch.arange(3.0) * 1.15
        grid = torch.cartesian_prod(line, line, line)
        jitter = torch.randn(ATOMS, 3, generator=torch.Generator().manual_seed(160))
        self.lattice = (grid - grid.mean(0) + 0.02 * jitter).to(DEVICE)
        self.place = self.lattice.clone()
        self.speed = torch.zeros_like(self.place)
        self.pull = torch.zeros_like(self.place)
        self.push = torch.zeros_like(self.place)
        self.thermostat = torch.ones((), device=DEVICE)
        self.self_pair = torch.eye(ATOMS, device=DEVICE, dtype=torch.bool)

    def forces(self):
        """Lennard-Jones, every row of the table by itself."""
        energy = torch.zeros(ATOMS, device=DEVICE)
        for part in self.budget.slices():
            gap = self.place[part, None] - self.place[None]
            square = gap.square().sum(-1).masked_fill(self.self_pair[part], 1.0)
            six = square.pow(-3).masked_fill(self.self_pair[part], 0.0)
            strength = 24 * (2 * six * six - six) / square
            self.pull[part] = (strength.unsqueeze(-1) * gap).sum(1)
            energy[part] = 2 * (six * six - six).sum(1)
        return energy

    def verlet(self):
        self.speed.add_(self.pull + self.push, alpha=DT / 2)
        self.place.add_(self.speed, alpha=DT)
        energy = self.forces()
        self.speed.add_(self.pull + self.push, alpha=DT / 2).mul_(self.thermostat)
        return energy.sum() + 0.5 * self.speed.square().sum()


budget = Budget()
cluster = Cluster(budget)
laser = torch.Generator().manual_seed(161)
TENANTS = (3, 1, 5, 2, 9)
queue = 0


@torch.no_grad()
def step():
    energies = [cluster.verlet() for _ in range(2)]
    return torch.stack(energies), cluster.place.clone()


def vary():
    """Other jobs come and go on the card; the laser heats and the thermostat cools."""
    global queue
    budget.share(TENANTS[queue % len(TENANTS)])
    queue += 1
    cluster.push.copy_(torch.randn(ATOMS, 3, generator=laser) * 4)
    cluster.thermostat.fill_(0.9 + 0.02 * queue)


def reset():
    global queue
    queue = 0
    cluster.place.copy_(cluster.lattice)
    cluster.speed.zero_()
    cluster.pull.zero_()
