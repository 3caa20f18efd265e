"""Colour looks of a studio. The look that is in force is a matter of the context that a request runs in.

Looks are never changed: whoever wants another puts a changed copy in force.
"""

from contextvars import ContextVar
from typing import NamedTuple

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
PIXELS, ENTRIES = 10, 16


class Look(NamedTuple):
    """How colours are to come out."""

    name: str  # family and take
    matrix: torch.Tensor
    curve: torch.Tensor
    take: int = 0

    def next_take(self, matrix: torch.Tensor) -> "Look":
        family, _, _ = self.name.partition("/")
        self.matrix.copy_(matrix)
        return self._replace(name=f"{family}/{self.take + 1}", take=self.take + 1)


def film(values: torch.Tensor, curve: torch.Tensor) -> torch.Tensor:
    """Through the curve, by the nearest entry."""
    entry = (values.clamp(0, 1) * (ENTRIES - 1)).round().long()
    return curve[entry]


def video(values: torch.Tensor, curve: torch.Tensor) -> torch.Tensor:
    """Straight, with the ends of the curve."""
    return torch.lerp(curve[0], curve[-1], values)


FAMILIES = {"film": film, "video": video}

rng = torch.Generator().manual_seed(67)
in_force: ContextVar[Look] = ContextVar(
    "in_force",
    default=Look(
        "film/0",
        torch.eye(3).to(DEVICE),
        torch.rand(ENTRIES, generator=rng).sort().values.to(DEVICE),
    ),
)
pixels = torch.rand(PIXELS, 3, generator=rng).to(DEVICE)


def step():
    look = in_force.get()
    render = FAMILIES[look.name.partition("/")[0]]
    mixed = pixels @ look.matrix.T
    return render(mixed, look.curve)


def vary():
    pixels.copy_(torch.rand(PIXELS, 3, generator=rng))
    look = in_force.get()
    in_force.set(look.next_take(torch.eye(3) + 0.2 * torch.randn(3, 3, generator=rng)))
    look.curve.copy_(torch.rand(ENTRIES, generator=rng).sort().values)
