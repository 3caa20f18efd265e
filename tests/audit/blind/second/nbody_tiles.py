from dataclasses import dataclass

import mrv2lab  # noqa: F401
import torch
import triton
import triton.language as tl

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
CAPACITY, TILE = 16, 4


@triton.jit
def _pull_kernel(pull_ptr, x_ptr, mass_ptr, count_ptr, CAPACITY: tl.constexpr, TILE: tl.constexpr):
    count = tl.load(count_ptr)
    first = tl.program_id(0) * TILE
    if first < count:
        mine = first + tl.arange(0, TILE)
        others = tl.arange(0, CAPACITY)
        x = tl.load(x_ptr + mine, mask=mine < count, other=0.0)
        y = tl.load(x_ptr + others, mask=others < count, other=0.0)
        mass = tl.load(mass_ptr + others, mask=others < count, other=0.0)
        away = y[None, :] - x[:, None]
        pull = tl.sum(mass[None, :] * away / (away * away + 0.1), axis=1)
        tl.store(pull_ptr + mine, pull, mask=mine < count)


@dataclass
class Bodies:
    x: torch.Tensor
    mass: torch.Tensor
    count: torch.Tensor
    alive: int

    @classmethod
    def allocate(cls):
        x, mass = torch.zeros(2, CAPACITY, device=DEVICE)
        return cls(x, mass, torch.full((), 4, dtype=torch.int32, device=DEVICE), 4)

    def load(self, x, mass):
        self.alive = x.numel()
        self.x[: self.alive].copy_(x)
        self.mass[: self.alive].copy_(mass)
        self.count.fill_(self.alive)


class Gravity:
    def __init__(self):
        self.bodies = Bodies.allocate()
        self.index = torch.arange(CAPACITY, device=DEVICE)

    def tiles(self):
        bound = CAPACITY if torch.cuda.is_current_stream_capturing() else self.bodies.alive
        return (triton.cdiv(bound, TILE),)

    def pulls(self):
        b = self.bodies
        pull = torch.empty(CAPACITY, device=DEVICE)
        _pull_kernel[self.tiles()](pull, b.x, b.mass, b.count, CAPACITY=CAPACITY, TILE=TILE)
        momentum = torch.where(self.index < b.count, pull * b.mass, 0.0)
        return pull, momentum.sum()


gravity = Gravity()
clusters = iter([3, 11, 6, 16, 2] * 100)


def rows():
    return gravity.bodies.alive


def step():
    return gravity.pulls()


def vary():
    n = next(clusters)
    k = torch.arange(n, dtype=torch.float32)
    gravity.bodies.load(torch.sin(k * 1.7 + n), 1 + 0.1 * k)
