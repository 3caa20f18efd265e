"""How a run is judged: its numbers against those of the eager reference."""

from collections.abc import Sequence
from typing import Protocol

import torch

from mrv2lab.results import Verdict

TOLERANCE = 1e-3
"""Largest relative error of a step that still counts as right: float32, sums in another order."""


def relative_error(value: torch.Tensor, reference: torch.Tensor) -> float:
    """Norm of the difference over the norm of the reference; infinite where not finite."""
    error = ((value.double() - reference.double()).norm() / reference.double().norm()).item()
    return error if error == error else float("inf")


class RanStep(Protocol):
    """What is asked of a step: how many graphs it replayed."""

    @property
    def num_replays(self) -> int: ...


def judge(
    errors: Sequence[float], steps: Sequence[RanStep], *, uses_graphs: bool, tolerance: float = TOLERANCE
) -> Verdict:
    """`wrong` if any step is off, `eager` if graphs were asked for and none ran, else `correct`."""
    if max(errors) > tolerance:
        return "wrong"
    if uses_graphs and not any(step.num_replays for step in steps):
        return "eager"
    return "correct"
