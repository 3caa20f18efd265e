"""The batch size is read as a Python int and changes, within the same padded bucket: identical device
work.
"""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = []
SUBJECTS = []


def bucket(n):
    return 8 if n <= 8 else 16


class Runner:
    def __init__(self):
        torch.manual_seed(0)
        self.batch_size = 3
        self.x = torch.randn(16, 4, device=DEVICE)
        self.w = torch.randn(4, 4, device=DEVICE)
        self.out = torch.zeros(16, 4, device=DEVICE)

    def step(self):
        padded = bucket(self.batch_size)
        self.out[:padded].copy_(self.x[:padded] @ self.w)


def make():
    r = Runner()

    def vary():
        r.batch_size = r.batch_size % 8 + 1
        r.x.add_(0.1)

    return {"step": r.step, "vary": vary, "reset": None}
