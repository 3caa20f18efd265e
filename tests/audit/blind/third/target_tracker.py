"""Alpha-beta filter over radar tracks; the launch covers a power of two of the tracks in play."""

import mrv2lab  # noqa: F401
import torch
import triton
import triton.language as tl

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
CAPACITY = 64


@triton.jit
def alpha_beta_kernel(position, speed, measured, count, gains, BLOCK: tl.constexpr):
    track = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = track < tl.load(count)
    alpha = tl.load(gains)
    beta = tl.load(gains + 1)
    dt = tl.load(gains + 2)
    v = tl.load(speed + track, mask=live, other=0.0)
    predicted = tl.load(position + track, mask=live, other=0.0) + dt * v
    residual = tl.load(measured + track, mask=live, other=0.0) - predicted
    tl.store(position + track, predicted + alpha * residual, mask=live)
    tl.store(speed + track, v + beta * residual / dt, mask=live)


def next_power_of_two(n):
    return 1 << (n - 1).bit_length()


class Tracker:
    block = 8

    def __init__(self):
        self.position = torch.zeros(CAPACITY, device=DEVICE)
        self.speed = torch.zeros(CAPACITY, device=DEVICE)
        self.measured = torch.zeros(CAPACITY, device=DEVICE)
        self.gains = torch.tensor([0.6, 0.2, 0.1], device=DEVICE)
        self.count = torch.zeros(1, dtype=torch.int32, device=DEVICE)
        self.bound = 0
        self.in_play = 0

    def receive(self, values, interval):
        self.in_play = len(values)
        self.bound = next_power_of_two(self.in_play)
        self.count.fill_(self.in_play)
        self.measured[: self.in_play].copy_(torch.tensor(values))
        self.gains[2:].fill_(interval)

    def filter(self):
        blocks = triton.cdiv(self.bound, self.block)
        alpha_beta_kernel[(blocks,)](
            self.position, self.speed, self.measured, self.count, self.gains, BLOCK=self.block
        )
        ahead = self.position + self.speed * self.gains[2]
        return torch.stack([self.position, self.speed, ahead], dim=1)


tracker = Tracker()
tracker.receive([0.1 * k for k in range(CAPACITY)], 0.1)
scans = 0
SIZES = [50, 20, 61, 7, 33, 64]


def step():
    return tracker.filter()


def vary():
    global scans
    size = SIZES[scans % len(SIZES)]
    scans += 1
    tracker.receive([0.1 * k + 0.5 * scans for k in range(size)], 0.1 + 0.02 * (scans % 4))


def reset():
    tracker.position.zero_()
    tracker.speed.zero_()


def rows():
    return tracker.in_play
