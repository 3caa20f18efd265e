"""The step advances its own index into a table of Python floats; the engine puts it back by reset."""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["frozen-host-value"]
SUBJECTS = ["index", "table"]


class Schedule:
    def __init__(self):
        self.table = [1.0 / (i + 1) for i in range(11)]
        self.start = 0
        self.index = 0

    def current(self):
        return self.table[self.index % len(self.table)]  # HERE


def make():
    torch.manual_seed(0)
    s = Schedule()
    x = torch.randn(8, device=DEVICE)

    def step():
        y = x * s.current()  # HERE
        y = y + s.current()  # HERE
        s.index += 1
        return y

    def vary():
        s.start += 7
        x.add_(0.1)

    def reset():
        s.index = s.start

    return {"step": step, "vary": vary, "reset": reset}
