"""A plan is filled from a list of Python's, element by element: what the loop went through is frozen."""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["frozen-host-value"]
SUBJECTS = ["num_pages"]


class Metadata:
    def __init__(self):
        self.num_pages = [1, 1, 1]
        self.plan = torch.ones(3, device=DEVICE)
        self.query = torch.arange(3.0, device=DEVICE)

    def forward(self):
        for row, pages in enumerate(self.num_pages):
            self.plan[row].fill_(pages)  # HERE
        return self.query * self.plan


def make():
    metadata = Metadata()

    def vary():
        metadata.num_pages = [3, 5, 4]

    return {"step": metadata.forward, "vary": vary, "reset": None}
