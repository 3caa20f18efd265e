"""The decay depends on the wall clock: not repeatable, and frozen if captured."""

import time

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["AuditError", "frozen-host-value", "diverged"]
SUBJECTS = ["time", "repeat", "age"]


def make():
    x = torch.ones(4, dtype=torch.float64, device=DEVICE)
    born = time.perf_counter()

    def step():
        age = time.perf_counter() - born  # HERE
        return x * age  # HERE

    return {"step": step, "vary": lambda: x.add_(1), "reset": None}
