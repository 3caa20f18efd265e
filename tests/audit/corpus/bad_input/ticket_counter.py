"""itertools.count numbers the steps, and the number enters the result."""

import itertools

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["AuditError", "frozen-host-value"]
SUBJECTS = ["next", "ticket", "repeat", "differ", "count"]


tickets = itertools.count(1)


def make():
    x = torch.ones(4, device=DEVICE)

    def step():
        return x * next(tickets)  # HERE

    return {"step": step, "vary": lambda: x.add_(1), "reset": None}
