"""Arithmetic Asian option by Monte Carlo, with counter-based random numbers of our own.

Numbers are a hash of (key, counter), so any block of paths can be drawn again from its counter alone.
Every call of `step` prices with the next block.
"""

import math
from contextlib import contextmanager
from dataclasses import dataclass

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
MASK = 0xFFFFFFFF


@dataclass
class Contract:
    strike: float = 100.0
    maturity: float = 1.0
    dates: int = 12


class CounterStream:
    def __init__(self, key):
        self.key, self._position = key, 0

    @contextmanager
    def reserve(self, count):
        """The first counter of a block of `count`; the block is spent once the body is through."""
        yield self._position
        self._position += count

    def mix(self, counters):
        """Two rounds of a multiply-xorshift hash in the low 32 bits."""
        x = (counters ^ self.key) & MASK
        for multiplier, shift in ((0x7FEB352D, 15), (0x2C1B3C6D, 12)):
            x = ((x ^ (x >> 16)) * multiplier) & MASK
            x = x ^ (x >> shift)
        return (x ^ (x >> 16)) & MASK


class NormalSource:
    def __init__(self, stream, paths, dates):
        self.stream = stream
        self.lanes = torch.arange(paths * dates, device=DEVICE).view(paths, dates)

    def draw(self):
        with self.stream.reserve(self.lanes.numel()) as first:
            bits = self.stream.mix(self.lanes + first)
        uniform = (bits.float() + 0.5) / 2.0**32
        return torch.erfinv((2.0 * uniform - 1.0).clamp(-0.99999, 0.99999)) * math.sqrt(2.0)


class AsianPricer:
    def __init__(self, contract, paths=64):
        self.contract = contract
        self.normals = NormalSource(CounterStream(key=0x5EED), paths, contract.dates)
        # spot, volatility, rate: quotes come in here
        self.market = torch.tensor([100.0, 0.25, 0.02], device=DEVICE)

    def price(self):
        spot, vol, rate = self.market.unbind()
        dt = self.contract.maturity / self.contract.dates
        shocks = (rate - 0.5 * vol**2) * dt + vol * math.sqrt(dt) * self.normals.draw()
        average = (spot * shocks.cumsum(1).exp()).mean(1)
        payoff = (average - self.contract.strike).clamp_min(0.0) * (-rate * self.contract.maturity).exp()
        return payoff.mean(), payoff.std(), average


gen = torch.Generator().manual_seed(77)
pricer = AsianPricer(Contract())


def step():
    price, error, average = pricer.price()
    return {"price": price, "error": error, "average": average}


def vary():
    tick = torch.randn(3, generator=gen) * torch.tensor([0.5, 0.005, 0.0005])
    pricer.market.add_(tick.to(DEVICE))
