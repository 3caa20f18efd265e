"""What a live variant is, and how its engine is judged."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import quantiles
from typing import Any

import torch

from mrv2lab.crash import Crash
from mrv2lab.live.engine import Graphs, Served
from mrv2lab.results import Latency
from mrv2lab.upstream.outcome import Outcome
from mrv2lab.upstream.releases import TARGET
from mrv2lab.upstream.unfix import Edit, unfix
from mrv2lab.verdict import eager_shares, judge, relative_error

TOLERANCE = 2e-2
"""Largest relative error of a step's logits in bfloat16 that still counts as right."""


@dataclass(frozen=True)
class Variant:
    """One way to run a bug in the engine: what a `cases.Variant` of the same name is there."""

    observe: Callable[[Path, Graphs], "Seen"]  # starts an engine over files in a folder and serves
    edits: tuple[Edit, ...] = ()  # statements taken out of vLLM, or put in
    env: dict[str, str] = field(default_factory=dict)  # what the worker must find before it imports vLLM
    crash: Crash | None = None  # what it must say, and within what, if a crash is its verdict


@dataclass(frozen=True)
class Seen:
    """What a variant left behind."""

    served: Served  # as the variant runs
    reference: Served  # the same steps in the same engine, none of them by a graph
    kernels: dict[str, int]  # nodes by name in the graph of the largest size
    metrics: dict[str, float]
    speeds: dict[str, float] = field(default_factory=dict)  # further ones, of which a wrong answer has none


def run(variant: Variant, folder: Path, *, watch: bool = True, release: str = TARGET) -> Outcome:
    """Run a variant in this process, which it has for itself, and judge it. A crash is the process's end.

    Args:
        watch: stand in for `torch.cuda.CUDAGraph`, for good.
        release: of vLLM, for which the variant's edits were written.
    """
    graphs = Graphs()
    if watch:
        graphs.watch()
    with ExitStack() as stack:
        if variant.edits:
            stack.enter_context(unfix(*variant.edits, versions=f"=={release}"))
        seen = variant.observe(folder, graphs)
    errors = relative_errors(seen.served.logits, seen.reference.logits)
    if seen.served.drafted:
        drafted = relative_errors(seen.served.drafted, seen.reference.drafted)
        errors = [max(pair) for pair in zip(errors, drafted, strict=True)]
    is_wrong = max(errors) > TOLERANCE  # then drafts may differ as well, and steps are not the same
    ranks = [] if is_wrong else zip(seen.served.counted, seen.reference.counted, strict=True)
    shares = [
        share
        for steps, wanted in ranks
        # A padded batch may take other kernels than the reference's, and fewer: no split sums, for example.
        for share in eager_shares(steps, wanted, [step.fits for step in steps], launches_per_node=2)
    ]
    verdict = judge(errors, shares, tolerance=TOLERANCE)
    is_right = verdict in ("correct", "eager")
    return Outcome(
        verdict=verdict,
        errors=errors,
        step_modes=["graph" if num_replays else "eager" for num_replays in seen.served.replays],
        eager_share=max(shares, default=None),
        kernels=seen.kernels,
        metrics=seen.metrics | (seen.speeds if is_right else {}),
        latency_ms=latency(seen.served) if is_right else None,
        tokens=[logits.argmax(dim=-1).tolist() for logits in seen.served.logits],
    )


def relative_errors(steps: list[torch.Tensor], wanted: list[torch.Tensor]) -> list[float]:
    """One for each step."""
    return [relative_error(*pair) for pair in zip(steps, wanted, strict=True)]


def latency(served: Served) -> Latency:
    """Time between the logits of two decode steps; the first steps, prefill among them, are left out."""
    tenths = quantiles(served.step_ms[3:], n=10)
    return Latency(median=tenths[4], p20=tenths[1], p80=tenths[7])


def wrap(owner: Any, name: str, around: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Replace a method for the rest of this process."""
    setattr(owner, name, around(getattr(owner, name)))
