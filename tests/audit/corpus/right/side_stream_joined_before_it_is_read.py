"""A side stream is joined before the work that reads what it writes."""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")


def make():
    side = torch.cuda.Stream()
    x, scores = torch.ones(4, device=DEVICE), torch.zeros(4, device=DEVICE)

    def step():
        main = torch.cuda.current_stream()
        side.wait_stream(main)
        with torch.cuda.stream(side):
            scores.copy_(x * 2)
        main.wait_stream(side)
        y = scores + 1
        return y

    return {"step": step, "vary": lambda: x.mul_(3), "reset": None}
