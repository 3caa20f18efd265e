from dataclasses import dataclass

import torch
from mrv2lab import graphs

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@dataclass
class SolverConfig:
    unknowns: int = 6
    tolerance: float = 0.5
    few: int = 2
    many: int = 8


class Readback:
    def __init__(self, value):
        self.pinned = graphs.host(torch.full((1,), value), pinned=True)

    def send(self, scalar):
        self.pinned.copy_(scalar.reshape(1), non_blocking=True)
        if not torch.cuda.is_current_stream_capturing():
            torch.cuda.current_stream().synchronize()

    def read(self):
        return float(self.pinned[0])


class Jacobi:
    def __init__(self, config):
        self.config = config
        n = config.unknowns
        off = 0.4 * torch.sin(torch.arange(n * n, dtype=torch.float32)).view(n, n)
        off.fill_diagonal_(0)
        self.off = off.to(DEVICE)
        self.diagonal = torch.full((n,), 2.5, device=DEVICE)
        self.rhs = torch.ones(n, device=DEVICE)
        self.x = torch.zeros(n, device=DEVICE)
        self.residual = Readback(float("inf"))

    def residual_norm(self, x):
        return (self.rhs - self.off @ x - self.diagonal * x).norm()

    def solve(self):
        self.residual.send(self.residual_norm(self.x))
        sweeps = self.config.few if self.residual.read() < self.config.tolerance else self.config.many
        x = self.x
        for _ in range(sweeps):
            x = (self.rhs - self.off @ x) / self.diagonal
        self.x.copy_(x)
        return x, self.residual_norm(x)


solver = Jacobi(SolverConfig())
profile = [0.1, 4.0, 0.2, 6.0, 0.1] * 100
loads = iter(profile)


def step():
    return solver.solve()


def vary():
    shift = next(loads)
    n = torch.arange(solver.config.unknowns, dtype=torch.float32)
    solver.rhs.add_((shift * torch.cos(n * 1.7)).to(DEVICE))


def reset():
    global loads
    loads = iter(profile)
    solver.rhs.fill_(1)
    solver.x.zero_()
    solver.residual.pinned.fill_(float("inf"))
