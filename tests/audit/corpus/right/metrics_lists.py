"""Lists of host figures grow with every step and hold wall-clock times; no device work depends on them."""

import time

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = []
SUBJECTS = []


class Metrics:
    def __init__(self):
        self.started = []
        self.rows = []


def make():
    torch.manual_seed(0)
    metrics = Metrics()
    x = torch.randn(4, 4, device=DEVICE)

    def step():
        metrics.started.append(time.perf_counter())
        y = x @ x.T
        metrics.rows.append(len(metrics.started) * y.shape[0])
        return y.sum(-1)

    return {"step": step, "vary": lambda: x.add_(0.5), "reset": None}
