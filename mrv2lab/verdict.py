"""How a run is judged: its numbers against those of the eager reference."""

from collections.abc import Mapping, Sequence
from typing import Protocol

import torch

from mrv2lab.graphs.work import Amount
from mrv2lab.results import Verdict

TOLERANCE = 1e-3
"""Largest relative error of a step that still counts as right: float32, sums in another order."""

ALLOWED = 0.1
"""Largest part of a model's launches that a step may make beside graphs: a repair may need one of its own.

Launches are counted, however long they take: 8 of 80 are exactly this much, and allowed.
"""


def relative_error(value: torch.Tensor, reference: torch.Tensor) -> float:
    """Norm of the difference over the norm of the reference; infinite where not finite."""
    error = ((value.double() - reference.double()).norm() / reference.double().norm()).item()
    return error if error == error else float("inf")


class RanStep(Protocol):
    """What is asked of a step: for each model that took part (`target`, `speculator`, a stage) what was done
    for it, and under `step` what was done in all."""

    @property
    def work(self) -> Mapping[str, Amount]: ...


def judge(errors: Sequence[float], eager: Sequence[float], *, tolerance: float = TOLERANCE) -> Verdict:
    """`wrong` if any step is off, `eager` if one that fits a graph did its work without, else `correct`.

    There is an error for each step, and of `eager_shares` one for each step that fits a graph.
    """
    if max(errors) > tolerance:
        return "wrong"
    return "eager" if max(eager, default=0.0) > ALLOWED else "correct"


def eager_shares(
    steps: Sequence[RanStep],
    reference: Sequence[RanStep],
    fits: Sequence[bool],
    idle: Sequence[float] = (),
    *,
    launches_per_node: int = 1,
) -> list[float]:
    """For each step that fits a graph, the part of a model's launches that were made without one: 0 to 1.

    Of several models that with the largest part counts. Attention that runs between graphs is left out, also
    where the step was asked for FULL graphs and PIECEWISE ones ran.

    Args:
        steps, reference: the same batches, the reference's without graphs.
        fits: for each step, whether the batch fits a size that graphs were asked for (`fits_a_graph`).
        idle: the errors when replays did nothing. A step that was right then did all of its work elsewhere.
        launches_per_node: how many launches of the reference a node may stand for.
    """
    shares = [
        max(_eager_share(step.work, wanted.work, model, launches_per_node) for model in _models(wanted.work))
        for step, wanted in zip(steps, reference, strict=True)
    ]
    if idle:
        shares = [1.0 if error <= TOLERANCE else share for share, error in zip(shares, idle, strict=True)]
    return [share for share, fit in zip(shares, fits, strict=True) if fit]


def _models(work: Mapping[str, Amount]) -> list[str]:
    return [name for name in work if name != "step"]


def _eager_share(
    work: Mapping[str, Amount], wanted: Mapping[str, Amount], model: str, launches_per_node: int
) -> float:
    """Ops beside the graphs count, wherever in the step they were issued. So does what no graph has done: a
    graph of something else is no work on the model.

    Attention that a capture breaks at is left out, up to what the reference has of it.
    """
    done, needed = work.get(model, Amount()), _own(wanted[model])
    if needed <= 0:
        return float(done.nodes == 0)
    outside = max(0, _outside(work) - _outside(wanted))
    split = max(0, _split(work) - _split(wanted))
    missing = needed - launches_per_node * done.nodes
    return min(1.0, max(_own(done) + outside + split, missing) / needed)


def _own(amount: Amount) -> int:
    """Ops that belong into graphs."""
    return amount.ops - amount.splitting


def _split(work: Mapping[str, Amount]) -> int:
    """Ops of attention in the whole step."""
    return work["step"].splitting if "step" in work else sum(amount.splitting for amount in work.values())


def _outside(work: Mapping[str, Amount]) -> int:
    """Other ops of a step that belong to no model: its inputs, sampling."""
    return _own(work["step"]) - sum(_own(work[model]) for model in _models(work)) if "step" in work else 0
