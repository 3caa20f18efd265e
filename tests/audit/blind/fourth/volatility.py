"""Intraday risk of a basket: exponentially weighted covariance and a minimum-variance tilt."""

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
ASSETS, TICKS = 6, 10


class Accumulator:
    """A decayed sum that takes its shape from what it is first given."""

    def __init__(self, halflife):
        self.keep = 0.5 ** (1 / halflife)
        self.total = None
        self.weight = None

    def add(self, value):
        if self.total is None:
            self.total = torch.zeros_like(value)
            self.weight = torch.zeros((), device=value.device)
        self.total.mul_(self.keep).add_(value)
        self.weight.mul_(self.keep).add_(1.0)
        return self.total / self.weight

    def drop(self):
        self.total = self.weight = None


class Desk:
    """Two horizons of the same basket; a session of the exchange opens with empty books."""

    def __init__(self, assets):
        self.horizons = {"fast": Accumulator(2.0), "slow": Accumulator(8.0)}
        self.ridge = 1e-2 * torch.eye(assets, device=DEVICE)
        self.returns = torch.zeros(TICKS, assets, device=DEVICE)

    def open(self):
        for horizon in self.horizons.values():
            horizon.drop()

    def covariance(self):
        centred = self.returns - self.returns.mean(0)
        sample = centred.T @ centred / (TICKS - 1)
        fast, slow = (h.add(sample) for h in self.horizons.values())
        return 0.7 * slow + 0.3 * fast + self.ridge


def inverse(matrix, rounds=12):
    """Newton's iteration: no pivots, no checks on the host."""
    guess = matrix.T / (matrix.abs().sum(0).max() * matrix.abs().sum(1).max())
    eye = torch.eye(len(matrix), device=matrix.device)
    for _ in range(rounds):
        guess = guess @ (2 * eye - matrix @ guess)
    return guess


desk = Desk(ASSETS)
feed = torch.Generator().manual_seed(30)
loadings = torch.randn(ASSETS, ASSETS, generator=torch.Generator().manual_seed(31)) * 0.3
bar = 0


@torch.no_grad()
def step():
    covariance = desk.covariance()
    tilt = inverse(covariance).sum(1)
    weights = tilt / tilt.abs().sum()
    return weights, (weights @ covariance @ weights).clamp_min(0).sqrt()


def vary():
    """The next bar; the first one of a day opens the session."""
    global bar
    if bar % 78 == 0:
        desk.open()
    bar += 1
    shocks = torch.randn(TICKS, ASSETS, generator=feed) * (0.5 + 0.4 * (bar % 4))
    desk.returns.copy_(shocks @ loadings)


def reset():
    global bar
    bar = 0
    feed.manual_seed(30)
    for horizon in desk.horizons.values():
        if horizon.total is not None:
            horizon.total.zero_()
            horizon.weight.zero_()
