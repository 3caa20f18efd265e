"""Nested timers by @contextmanager and by class, with a bounded record of times."""

import time
from collections import deque
from contextlib import contextmanager

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = []
SUBJECTS = []


class Timer:
    def __init__(self, name, sink):
        self.name, self.sink = name, sink

    def __enter__(self):
        self.began = time.perf_counter()
        return self

    def __exit__(self, *exception):
        self.sink.append((self.name, time.perf_counter() - self.began))


class Timed:
    def __init__(self):
        torch.manual_seed(0)
        self.x, self.records, self.slowest = torch.randn(4, 4, device=DEVICE), deque(maxlen=3), 0.0

    @contextmanager
    def section(self, name):
        before = time.monotonic()
        try:
            yield
        finally:
            self.slowest = max(self.slowest, time.monotonic() - before)

    def step(self):
        with Timer("all", self.records), self.section("mm"):
            y = self.x @ self.x.t()
        with self.section("exp"):
            return y.exp().sum(-1)


def make():
    timed = Timed()
    return {"step": timed.step, "vary": lambda: timed.x.mul_(0.8), "reset": None}
