"""Steepest descent on Rosenbrock's function with a backtracking line search.

All trial steps of the search are evaluated together and the longest one that satisfies Armijo's condition is
taken. An outer loop tightens the tolerance as it goes.
"""

from dataclasses import dataclass, replace

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SIZE, DESCENTS = 6, 3


@dataclass
class SearchOptions:
    longest: float = 0.5
    shrink: float = 0.5
    slope: float = 1e-4
    trials: int = 14
    tolerance: float = 1e-1

    def ladder(self):
        return tuple(self.longest * self.shrink**k for k in range(self.trials))


class Rosenbrock:
    def value(self, x):
        a, b = x[..., :-1], x[..., 1:]
        return (100.0 * (b - a * a).square() + (1.0 - a).square()).sum(-1)

    def gradient(self, x):
        g = torch.zeros_like(x)
        a, b = x[:-1], x[1:]
        g[:-1] += -400.0 * a * (b - a * a) - 2.0 * (1.0 - a)
        g[1:] += 200.0 * (b - a * a)
        return g


class Descent:
    def __init__(self, problem, options):
        self.problem, self.options = problem, options
        self.start = torch.zeros(SIZE, device=DEVICE)
        self.enough = torch.full((), options.tolerance, device=DEVICE)

    def search(self, x, value, gradient):
        lengths = torch.empty(self.options.trials, device=x.device)
        for place, length in zip(lengths.unbind(), self.options.ladder()):
            place.fill_(length)
        found = self.problem.value(x - lengths[:, None] * gradient)
        bound = value - self.options.slope * lengths * gradient.square().sum()
        first = (found <= bound).to(torch.int8).argmax()
        return lengths.gather(0, first[None])

    def run(self):
        x = self.start.clone()
        for _ in range(DESCENTS):
            value, gradient = self.problem.value(x), self.problem.gradient(x)
            moved = x - self.search(x, value, gradient) * gradient
            x = torch.where(gradient.norm() > self.enough, moved, x)
        return x, self.problem.value(x)

    def tighten(self, by):
        self.options = replace(self.options, tolerance=self.options.tolerance * by)
        self.enough.fill_(self.options.tolerance)


descent = Descent(Rosenbrock(), SearchOptions())
gen = torch.Generator().manual_seed(70)


def step():
    x, value = descent.run()
    return x, value


def vary():
    descent.tighten(by=3.0)
    descent.start.copy_(1.0 + 0.4 * torch.randn(SIZE, generator=gen))
