"""A generator counts on the host how many numbers it has drawn: each replay draws the same ones."""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["frozen-host-value"]
SUBJECTS = ["offset"]


class Generator:
    def __init__(self):
        self.offset, self.rows = 0, torch.arange(4, device=DEVICE)

    def numbers(self):
        offset, self.offset = self.offset, self.offset + 4  # HERE
        return ((self.rows + offset) * 7919 % 101).float()  # HERE


def make():
    generator, x = Generator(), torch.ones(4, device=DEVICE)
    return {"step": lambda: x + generator.numbers(), "vary": lambda: x.mul_(2), "reset": None}
