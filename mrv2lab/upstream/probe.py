"""What a probe is: the variants of one bug on vLLM's own classes, and what a release shows by itself.

A probe runs in a process of its own (`child`), with one release on the path and `platform` applied. A
variant of it is the released code with statements taken out or put in (`unfix`), or with another setting
that the release offers; as released means with neither.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from traceback import walk_tb

from mrv2lab.crash import Crash, ending, without_places
from mrv2lab.results import Verdict
from mrv2lab.upstream.model_runner import Step
from mrv2lab.upstream.outcome import Cell, Outcome, Word
from mrv2lab.upstream.releases import TARGET
from mrv2lab.upstream.unfix import Edit, unfix
from mrv2lab.verdict import eager_shares, judge, relative_error


@dataclass(frozen=True)
class Seen:
    """What a variant left behind, to be judged."""

    steps: Sequence[Step]  # as they ran
    reference: Callable[[], Sequence[Step]]  # runs the same requests without graphs
    metrics: dict[str, float] = field(default_factory=dict)  # named figures


@dataclass(frozen=True)
class Variant:
    """What a `cases.Variant` of the same name is in vLLM: `observe`, with `edits` applied to its source."""

    observe: Callable[[], Seen]
    edits: tuple[Edit, ...] = ()
    crash: Crash | None = None
    release: str = TARGET


@dataclass(frozen=True)
class Row:
    """One line of a bug's history: what is run as released, and how its outcome becomes a word."""

    observe: Callable[[], Seen]
    tell: Callable[[Outcome], tuple[Word, str]]  # word and observation, if it is right or shows the bug
    bug: tuple[Verdict, ...]  # verdicts that are this bug: those that the case states of its buggy variants
    name: str = ""  # names the line where a bug has more than one
    needs: Callable[[], str | None] = lambda: None  # why a release cannot have the bug, or None
    crash: Crash | None = None  # the crash that shows the bug, if one does


@dataclass(frozen=True)
class Probe:
    """A bug on vLLM's own classes. Variants carry the names that the case gives them."""

    variants: dict[str, Variant]
    rows: tuple[Row, ...]


def run(variant: Variant) -> Outcome:
    """Run a variant in this process and judge it. SourceChanged: its statements are not in the release.
    ModuleNotFoundError: a library that vLLM imports is not installed.
    """
    with unfix(*variant.edits, versions=f"=={variant.release}"):
        return outcome(variant.observe, crash=variant.crash)


def outcome(observe: Callable[[], Seen], *, crash: Crash | None = None) -> Outcome:
    """Observe and judge. What is raised and is not the stated crash is the probe's own; raises as `run`."""
    try:
        seen = observe()
        crash = None  # what the reference raises is not the variant's
        reference = seen.reference()
        pairs = zip(seen.steps, reference, strict=True)
        errors = [relative_error(step.output, wanted.output) for step, wanted in pairs]
        shares = eager_shares(seen.steps, reference, [step.fits for step in seen.steps])
    except Exception as error:
        if misses_library(error):
            raise
        return Outcome(**ending(error, crash), where=raised_in_vllm(error))
    return Outcome(
        verdict=judge(errors, shares),
        errors=errors,
        eager_share=max(shares, default=None),
        step_modes=["graph" if step.num_replays else "eager" for step in seen.steps],
        kernels=seen.steps[0].kernels,
        metrics=seen.metrics,
    )


def tell(row: Row) -> Cell:
    """What the release on the path says to one row, unedited. Raises as `run`."""
    if missing := row.needs():
        return Cell(row=row.name, word="not there", observation=missing)
    try:
        seen = outcome(row.observe, crash=row.crash)
        if seen.verdict in ("correct", *row.bug):
            word, observation = row.tell(seen)
        elif seen.verdict == "failed":
            place = f" ({seen.where})" if seen.where else ""
            word, observation = "unreachable", f"the probe does not fit: {seen.message}{place}"
        else:
            said = f"verdict {seen.verdict}, which is not this bug"
            word, observation = "unreachable", ": ".join(filter(None, [said, seen.message]))
    except Exception as error:  # says nothing about the bug
        if misses_library(error):
            raise
        word, observation = "unreachable", f"the probe does not fit: {error.__class__.__name__}: {error}"
    return Cell(row=row.name, word=word, observation=without_places(observation))


def misses_library(error: Exception) -> bool:
    """A module is not found that is neither ours nor vLLM's own, which a later release may have moved."""
    return isinstance(error, ModuleNotFoundError) and not str(error.name).startswith(("vllm", "mrv2lab"))


def raised_in_vllm(error: BaseException) -> str | None:
    """The innermost line of vLLM that an exception came out of: `vllm/lora/layers/base.py:90 in forward`."""
    for frame, line in reversed(list(walk_tb(error.__traceback__))):
        parts = Path(frame.f_code.co_filename.strip("<>").split(",")[0]).parts
        if "vllm" in parts:
            file = "/".join(parts[len(parts) - 1 - parts[::-1].index("vllm") :])
            return f"{file}:{line} in {frame.f_code.co_name}"
    return None
