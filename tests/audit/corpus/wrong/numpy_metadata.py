"""Metadata lives in a numpy array; an int of it bounds a slice."""

import numpy as np
import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["frozen-host-value"]
SUBJECTS = ["query_start", "start", "int"]


class Meta:
    def __init__(self):
        self.query_start = np.array([0, 3, 6], dtype=np.int32)


def make():
    torch.manual_seed(0)
    meta = Meta()
    q = torch.randn(16, 4, device=DEVICE)

    def step():
        start, end = int(meta.query_start[1]), int(meta.query_start[2])  # HERE
        return q[start:end].sum(0)

    def vary():
        meta.query_start[1:] = meta.query_start[1:] % 9 + 1
        meta.query_start.sort()

    return {"step": step, "vary": vary, "reset": None}
