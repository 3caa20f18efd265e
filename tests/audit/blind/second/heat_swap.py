from dataclasses import dataclass

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@dataclass
class Plate:
    size: int = 6
    diffusivity: float = 0.2
    sweeps: int = 4


class HeatSolver:
    def __init__(self, plate):
        self.plate = plate
        self.front = torch.zeros(plate.size, plate.size, device=DEVICE)
        self.back = torch.empty_like(self.front)
        self.source = torch.zeros_like(self.front)
        self.swaps = 0

    def swap(self):
        self.front, self.back = self.back, self.front
        self.swaps += 1

    def sweep(self):
        t = self.front
        around = torch.roll(t, 1, 0) + torch.roll(t, -1, 0) + torch.roll(t, 1, 1) + torch.roll(t, -1, 1)
        torch.add(t, self.plate.diffusivity * (around - 4 * t) + self.source, out=self.back)
        self.swap()

    def advance(self):
        for _ in range(self.plate.sweeps):
            self.sweep()
        return self.front.clone(), self.front.mean()

    def heat(self, place, power):
        self.source.zero_()
        self.source[place].fill_(power)

    def cool(self):
        self.front.zero_()
        self.source.zero_()
        self.swaps = 0


solver = HeatSolver(Plate())
burners = iter(range(1, 10_000))


def step():
    return solver.advance()


def vary():
    k = next(burners)
    solver.heat((k % 6, (2 * k) % 6), 0.1 * k)


def reset():
    global burners
    solver.cool()
    burners = iter(range(1, 10_000))
