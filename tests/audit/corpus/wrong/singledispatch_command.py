"""singledispatch picks the work by the type of a command object that is replaced later."""

from functools import singledispatch

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["frozen-host-value", "lost-kernel"]
SUBJECTS = ["command", "by", "amount", "apply"]


class Shift:
    def __init__(self, by):
        self.by = by


class Clip:
    limit = 0.5


@singledispatch
def apply(command, x):
    raise TypeError(command)


@apply.register
def _(command: Shift, x):
    return x + command.by  # HERE


@apply.register
def _(command: Clip, x):
    return x.clamp(-command.limit, command.limit)  # HERE


def make():
    torch.manual_seed(0)
    x = torch.randn(6, device=DEVICE)
    session = {"command": Shift(1.0)}

    def step():
        return apply(session["command"], x)  # HERE

    def vary():
        session["command"] = Clip() if isinstance(session["command"], Shift) else Shift(2.0)

    return {"step": step, "vary": vary, "reset": None}
