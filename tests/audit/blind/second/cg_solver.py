from dataclasses import dataclass
from types import SimpleNamespace

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@dataclass
class CGConfig:
    unknowns: int = 6
    iterations: int = 5
    slack: int = 2


class Workspace:
    def __init__(self, size, slack):
        self.memory = torch.empty(4, size + slack, device=DEVICE)
        self.size = size

    def vectors(self):
        return (row[: self.size] for row in self.memory)


class ConjugateGradient:
    def __init__(self, config):
        self.config = config
        self.matrix = torch.eye(config.unknowns, device=DEVICE)
        self.rhs = torch.ones(config.unknowns, device=DEVICE)
        self.spent = 0

    def dot(self, a, b):
        return (a * b).sum().clamp(min=1e-12)

    def solve(self):
        workspace = Workspace(self.config.unknowns, self.config.slack)
        x, r, p, q = workspace.vectors()
        x.zero_()
        r.copy_(self.rhs)
        p.copy_(r)
        rho = self.dot(r, r)
        for _ in range(self.config.iterations):
            torch.mv(self.matrix, p, out=q)
            alpha = rho / self.dot(p, q)
            x.add_(alpha * p)
            r.sub_(alpha * q)
            before, rho = rho, self.dot(r, r)
            p.mul_(rho / before).add_(r)
            self.spent += 1
        return x, r.norm()


class Model:
    def __init__(self):
        self.cg = ConjugateGradient(CGConfig())
        self.load = 0

    def assemble(self):
        self.load += 1
        n = self.cg.config.unknowns
        half = torch.sin(torch.arange(n * n, dtype=torch.float32) * 0.3 * self.load).view(n, n)
        self.cg.matrix.copy_(half @ half.T / n + 2 * torch.eye(n))
        self.cg.rhs.copy_(torch.cos(torch.arange(n, dtype=torch.float32) * self.load))


def make_engine():
    model = Model()
    return SimpleNamespace(step=model.cg.solve, vary=model.assemble)
