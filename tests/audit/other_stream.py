"""A launch on another stream, which capture does not record, and the same joined to it. Needs a GPU."""

import torch

x = torch.arange(8.0, device="cuda") + 1
out = torch.zeros(8, device="cuda")
side = torch.cuda.Stream()


def beside() -> torch.Tensor:
    """The copy runs once, during capture."""
    y = x * 2
    with torch.cuda.stream(side):
        out.copy_(y)
    return out


def joined() -> torch.Tensor:
    """Fork and join: the side stream belongs to the capture."""
    y = x * 2
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        out.copy_(y)
    torch.cuda.current_stream().wait_stream(side)
    return out


def vary() -> None:
    """New inputs."""
    x.mul_(2)
