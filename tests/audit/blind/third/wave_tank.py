"""A wave tank: second-order wave equation, leapfrog in time, a wavemaker at the left wall."""

import torch
import torch.nn.functional as F

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class WaveTank:
    substeps = 4

    def __init__(self, height=18, width=24, courant=0.5):
        self.courant2 = courant * courant
        y = torch.linspace(-1, 1, height)[:, None]
        x = torch.linspace(-1, 1, width)[None, :]
        self.hump = torch.exp(-12 * (x * x + y * y)).to(DEVICE)
        self.depth = (0.6 + 0.4 * (x + 1) / 2).expand(height, width).contiguous().to(DEVICE)
        self.paddle = torch.zeros(height, device=DEVICE)
        self.past, self.now, self.next = (self.hump.clone() for _ in range(3))
        stencil = torch.tensor([[0.0, 1.0, 0.0], [1.0, -4.0, 1.0], [0.0, 1.0, 0.0]])
        self.stencil = stencil[None, None].to(DEVICE)

    def laplacian(self, u):
        padded = F.pad(u[None, None], (1, 1, 1, 1), mode="replicate")
        return F.conv2d(padded, self.stencil)[0, 0]

    def leap(self):
        torch.mul(self.now, 2.0, out=self.next)
        self.next.sub_(self.past)
        self.next.addcmul_(self.depth, self.laplacian(self.now), value=self.courant2)
        self.next[:, 0].add_(self.paddle)
        self.next.mul_(0.995)

    def rotate(self):
        self.past, self.now, self.next = self.now, self.next, self.past

    def advance(self):
        for _ in range(self.substeps):
            self.leap()
            self.rotate()
        energy = (self.now - self.past).square().sum()
        return self.now.clone(), energy

    def restart(self):
        """Still water with a hump in the middle."""
        self.next.zero_()
        self.past.copy_(self.hump)
        self.now.copy_(self.hump)

    def drive(self, stroke):
        rows = torch.arange(self.paddle.numel())
        self.paddle.copy_(stroke * torch.sin(rows * 0.6))


tank = WaveTank()
strokes = [0.10, 0.25, -0.15, 0.30, 0.05]
count = 0


def step():
    return tank.advance()


def vary():
    global count
    tank.drive(strokes[count % len(strokes)])
    count += 1


def reset():
    tank.restart()
