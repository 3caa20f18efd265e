"""A global stack of scopes with a context manager; the bottom entry, read within, changes."""

from contextlib import contextmanager

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["frozen-host-value"]
SUBJECTS = ["_scope", "scale", "current"]


_scope = [0.5]


@contextmanager
def doubled():
    _scope.append(_scope[-1] * 2)  # HERE
    try:
        yield _scope[-1]
    finally:
        _scope.pop()


def current():
    return _scope[-1]  # HERE


def make():
    _scope[:] = [0.5]
    torch.manual_seed(0)
    x = torch.randn(4, device=DEVICE)

    def step():
        with doubled():
            y = x * current()  # HERE
        return y - x

    def vary():
        _scope[0] += 0.25

    return {"step": step, "vary": vary, "reset": None}
