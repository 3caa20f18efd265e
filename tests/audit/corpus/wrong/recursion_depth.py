"""A recursive fold as deep as the host says."""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["lost-kernel", "frozen-host-value"]
SUBJECTS = ["depth", "fold"]


class Folder:
    def __init__(self):
        torch.manual_seed(0)
        self.x, self.depth = torch.randn(16, device=DEVICE), 2

    def fold(self, x, depth):
        if not depth:  # HERE
            return x
        half = x.numel() // 2
        return self.fold(torch.cat([x[:half] + x[half:], x[half:]]), depth - 1)  # HERE

    def __call__(self):
        return self.fold(self.x, self.depth)  # HERE


def make():
    folder = Folder()

    def vary():
        folder.depth += 1

    return {"step": folder, "vary": vary, "reset": None}
