"""Quasi-static heating of a plate: Jacobi sweeps between two grids, the burner moves between steps."""

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Plate:
    def __init__(self, height=20, width=28, sweeps=6):
        self.sweeps = sweeps
        self.shape = (height, width)
        self.old = torch.zeros(height, width, device=DEVICE)
        self.new = torch.zeros(height, width, device=DEVICE)
        self.burner = torch.zeros(height, width, device=DEVICE)
        self.edge = torch.zeros(width, device=DEVICE)
        self.total_sweeps = 0

    def sweep(self):
        source, target = self.old, self.new
        inner = target[1:-1, 1:-1]
        torch.add(source[:-2, 1:-1], source[2:, 1:-1], out=inner)
        inner.add_(source[1:-1, :-2]).add_(source[1:-1, 2:]).mul_(0.25)
        inner.add_(self.burner[1:-1, 1:-1])
        target[0].copy_(self.edge)
        target[-1].copy_(source[-2])
        target[:, 0].copy_(source[:, 1])
        target[:, -1].copy_(source[:, -2])
        self.old, self.new = target, source
        self.total_sweeps += 1

    def relax(self):
        for _ in range(self.sweeps):
            self.sweep()
        change = (self.old - self.new).abs().amax()
        return self.old.clone(), change

    def move_burner(self, row, col, heat):
        self.burner.zero_()
        self.burner[row - 2 : row + 3, col - 2 : col + 3].fill_(heat)


class Cook:
    """Somebody who walks the burner along the plate and opens the window now and then."""

    def __init__(self, plate):
        self.plate = plate
        self.moves = 0
        self.act()

    def act(self):
        height, width = self.plate.shape
        row = 3 + (5 * self.moves) % (height - 6)
        col = 3 + (7 * self.moves) % (width - 6)
        self.plate.move_burner(row, col, heat=0.5 + 0.25 * (self.moves % 3))
        self.plate.edge.fill_(-1.0 if self.moves % 2 else 0.5)
        self.moves += 1


plate = Plate()
cook = Cook(plate)


def step():
    return plate.relax()


def vary():
    cook.act()


def reset():
    plate.old.zero_()
    plate.new.zero_()
