"""A decorator with state runs the expensive correction only in phase 0."""

import functools

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["lost-kernel", "frozen-host-value"]
SUBJECTS = ["every", "calls", "phase"]


def in_phase(wanted):
    def wrap(fn):
        @functools.wraps(fn)
        def inner(x):
            if inner.phase != wanted:  # HERE
                return x
            return fn(x)

        inner.phase = 1
        return inner

    return wrap


def make():
    @in_phase(0)
    def correct(x):
        return x - x.mean()  # HERE

    torch.manual_seed(0)
    x = torch.randn(6, device=DEVICE)

    def step():
        return correct(x * 3)  # HERE

    def vary():
        correct.phase ^= 1

    return {"step": step, "vary": vary, "reset": None}
