"""A generator keeps running statistics by send(); they never reach the device."""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = []
SUBJECTS = []


def running():
    total, count = 0, 0
    while True:
        got = yield total / max(1, count)
        total, count = total + got, count + 1


def make():
    torch.manual_seed(0)
    x, stats = torch.randn(6, device=DEVICE), running()
    next(stats)
    batch = {"tokens": 3}

    def pieces():
        for half in x.chunk(2):
            yield half.softmax(0)
        yield from (x[:2], x[4:])

    def step():
        average = stats.send(batch["tokens"])
        assert average >= 0
        return torch.cat([*pieces()])

    def vary():
        batch["tokens"] += 1
        x.mul_(1.2)

    return {"step": step, "vary": vary, "reset": None}
