"""A bug as an object: its variants, the verdict each must show, and how a run is judged."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from inspect import unwrap
from pathlib import Path
from traceback import walk_tb
from typing import Any, NamedTuple, get_args

from mrv2lab import journal, progress, sources
from mrv2lab.audit import AuditReport, Kind, Timeline, of_audit
from mrv2lab.cases import isolated
from mrv2lab.cases.exercises.base import Check, Exercise, Hint
from mrv2lab.cases.exercises.missing_test import RED, Seen, Start, Test, TestCheck, check_test, unnamed
from mrv2lab.cases.exercises.watch import Watch
from mrv2lab.crash import Crash, ending
from mrv2lab.errors import BadInput, CutOff, choose
from mrv2lab.graphs import resolve
from mrv2lab.limits import alone, time_limit
from mrv2lab.live import rung as live
from mrv2lab.live.releases import variants as variants_of_engine
from mrv2lab.results import Latency, Role, Run, Rung, Stated, Verdict, provenance, recorded
from mrv2lab.runner import ModelRunnerOutput, RunnerConfig
from mrv2lab.source import Diff, SideBySide, diff, side_by_side
from mrv2lab.upstream import process, releases
from mrv2lab.upstream.outcome import Outcome
from mrv2lab.verdict import eager_shares, judge, relative_error

SEED = 0

CHECK_CPU_S = 60.0  # for a function of the reader's own
RUN_CPU_S = 600.0

DEFAULT_ENGINE = live.Options()

_PACKAGE = Path(__file__).resolve().parent.parent

# Rungs that run the mini runner, and the executor each one uses; and those that run vLLM itself.
_RUNGS: dict[str, Rung] = {"emulated": "emulated", "cuda": "cuda"}
_UPSTREAM: dict[str, Rung] = {"source": "source", "vllm": "vllm"}


@dataclass(frozen=True)
class Variant:
    """One way the code was or could be, for the seam of the mini runner. How vLLM itself is made to run the
    same is said by `upstream.probe.Variant` and `live.run.Variant`, under the same name.
    """

    fn: Callable[..., Any]  # goes into the case's seam
    role: Role
    expected: Stated  # the verdict it must show
    uses_graphs: bool = True  # False for a baseline that is meant to run eagerly
    finding: tuple[Kind, str] | None = None  # what an audit must find first; None if it must find nothing
    unseen: str = ""  # why an audit finds nothing of a bug that has no `finding`
    crash: Crash | None = None  # on `source` and `vllm` it is stated where they run it

    @property
    def name(self) -> str:
        return self.fn.__name__


class Limit(NamedTuple):
    """What a caller may choose for one number of a shape."""

    default: int
    least: int
    most: int


LIMITS = {
    "batch_size": Limit(4, 1, 8),
    "num_steps": Limit(18, 9, 40),
    "num_layers": Limit(2, 1, 8),
    "to_the_limits": Limit(0, 0, 1),
}
"""What `cases.workload` and `cases.serving` read of a shape."""


@dataclass(frozen=True)
class Observation:
    """What a case saw while running one variant beside the eager reference, and the config it was given.
    `idle` are the same steps once more, with replays that do nothing.
    """

    steps: list[ModelRunnerOutput]
    reference: list[ModelRunnerOutput]
    config: RunnerConfig
    idle: list[ModelRunnerOutput] = field(default_factory=list)
    kernels: dict[str, int] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    measure: Callable[[], Latency | None] = lambda: None


Observe = Callable[[Variant, str, dict[str, int]], Observation]
AuditStep = Callable[[Variant, str, dict[str, int], int], AuditReport]


@dataclass(frozen=True)
class Case:
    """A bug, ready to run. What happens in it is told by the docstring of its module."""

    name: str  # also the stem of its notebook and test
    title: str
    upstream: str  # pull requests
    variants: tuple[Variant, ...]  # in the order they are shown
    observe: Observe  # runs a variant on an executor with a shape
    audit_step: AuditStep  # audits one, with a seed for weights and prompts
    limits: dict[str, Limit] = field(default_factory=LIMITS.copy)  # of the numbers that make up a shape
    # those that it claims. Others are refused, and passed over where all cases are asked for
    rungs: tuple[Rung, ...] = get_args(Rung)
    # a variant may take the CUDA context with it, so on `cuda` each has a process, with this environment
    loses_context: bool = False
    child_env: Callable[[dict[str, int]], dict[str, str]] = lambda shape: {}
    exercise: Exercise | None = None
    # starts a variant and serves nothing: where all that is wrong ends in a crash
    start: Callable[[Variant, str, dict[str, int]], Any] | None = None

    def variant(self, name: str) -> Variant:
        """Look a variant up by name. BadInput: there is none of this name; lists those there are."""
        choose(f"variant of {self.name}", name, [v.name for v in self.variants])
        return next(v for v in self.variants if v.name == name)

    def run(self, variant: str, *, rung: str = "auto", **shape: int) -> Run:
        """Run one variant beside the eager reference and judge it.

        `rung` is `emulated`, `cuda`, `auto` for the more real one of these that this machine has, `source`
        for vLLM's own classes under the emulator, fetched if need be, or `vllm` for the engine; the last two
        have a workload of their own, and no shape. BadInput: an unknown variant, rung or shape, a shape out
        of range, no GPU for `cuda`, or for `source` no release or a library that it imports, for `vllm` no
        vLLM.
        """
        return next(self.run_all([variant], rung=rung, engine=DEFAULT_ENGINE, **shape))

    def audit(self, variant: str, *, rung: str = "auto", seed: int = SEED, **shape: int) -> AuditReport:
        """Audit one variant: the same call for each, so that what is found comes from the variant.

        In this process, on every rung: an audit stops before work that would lose the CUDA context. `rung`
        is `emulated`, `cuda` or `auto`; `seed` that of weights and prompts. The rest, and BadInput: as `run`.
        """
        with alone:
            return self.audit_step(self.variant(variant), self._rung_here(rung), self.complete(shape), seed)

    def timelines(self, *variants: str, rung: str = "auto", seed: int = SEED, **shape: int) -> list[Timeline]:
        """Audit variants and return what happened when in each. Arguments and exceptions as in `audit`.
        AuditError: the audit of one stopped before there was a replay to look at.
        """

        def of(variant: Variant) -> Timeline:
            found = of_audit(lambda: self.audit(variant.name, rung=rung, seed=seed, **shape))
            return replace(found, name=variant.name, role=variant.role)

        return [of(self.variant(name)) for name in variants]

    def run_all(
        self,
        variants: Sequence[str] = (),
        *,
        rung: str = "auto",
        engine: live.Options = DEFAULT_ENGINE,
        **shape: int,
    ) -> Iterator[Run]:
        """Run variants, all of them by default, one after the other; on `source` in one process,
        on `vllm` several at once, as `engine` says, and whom it tells. All else is as in `run`.
        """
        possible = [variant.name for variant in self.variants]
        choose(f"rung of {self.name}", rung, ["auto", *self.rungs])
        if rung == "vllm":
            possible = list(variants_of_engine(self.name, engine.release))
        chosen = [self.variant(name) for name in variants or possible]
        checked = self.checked_rung(rung, shape, engine.release)
        for variant in chosen:
            choose(f"variant of {self.name} on rung {rung}", variant.name, possible)
        if checked in _UPSTREAM:
            yield from self._run_upstream(chosen, checked, engine)
            return
        for variant in chosen:
            yield self._run(variant, variant.role, rung, self.complete(shape))

    def _run_upstream(self, variants: list[Variant], rung: Rung, engine: live.Options) -> Iterator[Run]:
        """vLLM itself: its classes on a CPU, or its engine."""
        names = [variant.name for variant in variants]
        if rung == "source":
            outcomes: Iterable[Outcome] = process.run_variants(self.name, names)
        else:
            outcomes = live.run_variants(self.name, names, engine)
        made_by = sources.of_run(self.name, rung)
        made_with = provenance(SEED, uses_gpu=rung == "vllm", made_by=made_by)
        ran_on = process.releases_of(self.name, names) if rung == "source" else [engine.release]
        made_with = made_with.model_copy(update={"vllm": ", ".join(ran_on)})
        for variant, outcome in zip(variants, outcomes, strict=True):
            yield Run(
                case=self.name,
                variant=variant.name,
                role=variant.role,
                rung=rung,
                expected=variant.expected,
                provenance=made_with,
                **outcome.model_dump(exclude={"tokens"}),
            )

    def live_or_recorded(self, engine: live.Options = DEFAULT_ENGINE) -> tuple[list[Run], bool]:
        """All variants in the real engine, or as recorded where it cannot run here; and whether they are."""
        choose(f"rung of {self.name}", "vllm", self.rungs)
        if live.missing(self.name):
            return recorded(self.name, "vllm"), True
        return list(self.run_all(rung="vllm", engine=engine)), False

    def diff(self, before: str, after: str) -> Diff:
        """What changes between two variants, as source."""
        return diff(self.variant(before).fn, self.variant(after).fn)

    def check(self, fn: Callable[..., Any], *, rung: str = "auto", **shape: int) -> Check:
        """Put a reader's own function into the seam, run it and judge it as a fix.

        A repair that solves it is noted in the reader's journal, unless it is one of this package's own.
        Always in this process. A case that may lose the CUDA context is therefore checked on `emulated`.
        BadInput: as `run`; `source` has no seam for it. Or `fn` is no function, or there is no exercise.
        """
        choose("rung", rung, ["auto", *_RUNGS])
        rung, whole = "emulated" if self.loses_context else rung, self.complete(shape)
        uses_graphs = any(variant.uses_graphs for variant in self.variants)

        def run(watch: Watch, before: dict[str, int], after: dict[str, int]) -> Run:
            readers = Variant(watch, "fixed", "correct", uses_graphs, crash=self._crash)
            return self._run(readers, None, rung, whole | before | shape | after)

        with alone:
            checked = self._exercise.check(fn, run)
        if checked.solved and not _is_ours(fn):
            journal.note("solved", self.name)
        return checked

    def check_test(self, test: Test, *, rung: str = "auto", **shape: int) -> TestCheck:
        """Judge a reader's test: red on what fails, green on what holds. Variants that crash are left out.

        Each variant is run once for a shape, by `run` or here, however many tests are tried on it, and a test
        is given a `missing_test.Seen`; in a case that has `start` a `missing_test.Start`. BadInput: as `run`.
        """
        choose("rung", rung, ["auto", *_RUNGS])
        rung = self._rung_here("emulated" if self.loses_context else rung)
        shape = self.complete(shape)
        start = self.start
        if start is not None:

            def started(variant: Variant) -> Start:
                return Start(partial(start, Variant(unnamed(variant.fn), "fixed", "correct"), rung, shape))

            return check_test(test, self.variants, started)
        asked = [v for v in self.variants if v.expected != "crash"]
        assert any(v.role in RED for v in asked), f"{self.name} needs a `start`"
        return check_test(test, asked, lambda v: Seen(_seen(self.observe, v, rung, shape)))

    def hint(self, number: int) -> Hint:
        """One of three hints for the exercise: 1 asks, 2 says where, 3 says what. BadInput: there is no hint
        of this number, or no exercise.
        """
        hints = self._exercise.hints
        choose("hint", str(number), [str(i + 1) for i in range(len(hints))])
        return Hint(number, hints[number - 1])

    def solution(self, fn: Callable[..., Any] | None = None) -> SideBySide:
        """A repair that holds, beside a function of the reader's own; closed until opened or printed."""
        exercise = self._exercise
        known = self.variant(exercise.solution)
        return side_by_side(fn, known.fn, titles=("yours", f"{exercise.whose}: {known.name}"))

    @property
    def _exercise(self) -> Exercise:
        """Raises BadInput: nobody has written one."""
        if self.exercise is None:
            raise BadInput(f"{self.name} has no exercise: mrv2lab/cases/exercises/{self.name}.py")
        return self.exercise

    @property
    def _crash(self) -> Crash | None:
        """What shows the bug in a reader's function, which may bring it on in any pass of the runner's."""
        stated = [variant.crash for variant in self.variants if variant.crash]
        return replace(stated[0], within="") if stated else None

    def _run(self, variant: Variant, role: Role | None, rung: str, shape: dict[str, int]) -> Run:
        rung = self._rung_here(rung)
        common: dict[str, Any] = {
            "case": self.name,
            "variant": variant.name,
            "role": role,
            "rung": rung,
            "expected": variant.expected,
            "shape": shape,
            "provenance": provenance(SEED, uses_gpu=rung == "cuda", made_by=sources.of_run(self.name, rung)),
        }
        try:
            if self.loses_context and rung == "cuda" and not isolated.in_child():
                run = isolated.run(self.name, variant.name, rung, shape, self.child_env(shape))
                return run.model_copy(update={"provenance": common["provenance"]})  # not the child's command
            limit_s = CHECK_CPU_S if role is None else RUN_CPU_S
            with alone, progress.shown(variant.name), time_limit(limit_s, variant.name):
                seen = self.observe(variant, rung, shape)
                verdict, eager_share, errors = judged_as(seen)
                latency = seen.measure() if verdict in ("correct", "eager") else None
            if role is not None:
                _keep(self.observe, variant, rung, shape, seen)
        except Exception as error:
            crash = variant.crash
            if isinstance(variant.fn, Watch):
                variant.fn.note(error)
                crash = None if variant.fn.trouble and variant.fn.trouble.is_own else crash
            elif isinstance(error, BadInput):
                raise
            ended = ending(error, crash)
            return Run(**common, **ended, errors=[], step_modes=[], where=raised_at(error))
        return Run(
            **common,
            verdict=verdict,
            errors=errors,
            eager_share=eager_share,
            step_modes=["graph" if step.num_replays else "eager" for step in seen.steps],
            kernels=seen.kernels,
            metrics=seen.metrics,
            latency_ms=latency,
        )

    def checked_rung(self, rung: str, shape: dict[str, int], release: str = releases.TARGET) -> Rung:
        """Turn `auto` into a rung, and check the shape for it. BadInput: an unknown rung or shape, a shape
        out of range, no GPU for `cuda`, or no vLLM or GPU for `vllm`.
        """
        choose(f"rung of {self.name}", rung, ["auto", *self.rungs])
        if rung not in _UPSTREAM:
            self.complete(shape)
            return self._rung_here(rung)
        if shape:
            raise BadInput(f"rung {rung} has a workload of its own; leave out {', '.join(shape)}")
        if rung == "vllm":
            live.check(self.name, release)
        return _UPSTREAM[rung]

    def complete(self, shape: dict[str, int]) -> dict[str, int]:
        """Check a shape and fill in the defaults. BadInput: an unknown name, or a value out of range."""
        for name, value in shape.items():
            choose(f"shape of {self.name}", name, list(self.limits))
            limit = self.limits[name]
            if not limit.least <= value <= limit.most:
                raise BadInput(f"{name}={value} is out of range; possible: {limit.least} to {limit.most}")
        return {name: shape.get(name, limit.default) for name, limit in self.limits.items()}

    def _rung_here(self, rung: str) -> Rung:
        """As `best_rung`, of the rungs that the case claims."""
        choose(f"rung of {self.name}", rung, ["auto", *(name for name in self.rungs if name in _RUNGS)])
        return best_rung(rung if "cuda" in self.rungs else "emulated")


@lru_cache(maxsize=16)
def _kept(observe: Observe, variant: Variant, rung: Rung, *shape: tuple[str, int]) -> list[Observation]:
    """Where a variant's last run is kept for the tests that are tried on it; empty before there is one."""
    return []


def _keep(observe: Observe, variant: Variant, rung: Rung, shape: dict[str, int], seen: Observation) -> None:
    """Without the runner, whose memory only a measurement needs."""
    _kept(observe, variant, rung, *shape.items())[:] = [replace(seen, measure=lambda: None)]


def _seen(observe: Observe, variant: Variant, rung: Rung, shape: dict[str, int]) -> Observation:
    """A run of a variant for the tests that are tried on it: the last one, or one that is made now."""
    kept = _kept(observe, variant, rung, *shape.items())
    if not kept:
        with alone, progress.shown(variant.name):
            _keep(observe, variant, rung, shape, observe(variant, rung, shape))
    return kept[0]


def judged_as(seen: Observation) -> tuple[Verdict, float | None, list[float]]:
    """The verdict, the largest part of a model's work that was done eagerly, and the error of each step."""
    errors = relative_errors(seen.steps, seen.reference)
    fits = [seen.config.fits_a_graph(len(step.req_ids), step.num_tokens) for step in seen.reference]
    shares = eager_shares(seen.steps, seen.reference, fits, idle_errors(seen) if seen.idle else ())
    return judge(errors, shares), max(shares, default=None), errors


def idle_errors(seen: Observation) -> list[float]:
    """The errors when replays did nothing. Infinite for the last step of each size: its graph left the right
    answer behind when it ran.
    """
    errors = relative_errors(seen.idle, seen.reference)
    last = {seen.config.padded(step.num_tokens): i for i, step in enumerate(seen.reference)}
    return [float("inf") if i in last.values() else error for i, error in enumerate(errors)]


def _is_ours(fn: Callable[..., Any]) -> bool:
    """Whether a function comes out of this package: a variant solves an exercise, and nobody solved it."""
    return (getattr(unwrap(fn), "__module__", None) or "").split(".")[0] == __name__.split(".")[0]


def best_rung(rung: str) -> Rung:
    """Turn `auto` into the more real of the mini runner's rungs that this machine has, and check the rest.
    BadInput: an unknown rung, or `cuda` without a GPU.
    """
    choose("rung", rung, ["auto", *_RUNGS])
    return _RUNGS[resolve(rung)]


def raised_at(error: BaseException) -> str | None:
    """Where in this package an exception came out: `runner/model.py:90 in forward`, the innermost such frame.

    Frames that set `__tracebackhide__` (pytest's convention) only pass calls on and are left out. None for an
    exception that never passed through the package, for `Died`, whose place was lost with its process, and
    for `CutOff`, which comes wherever the run happens to be.
    """
    if isinstance(error, isolated.Died | CutOff):
        return None
    for frame, line in reversed(list(walk_tb(error.__traceback__))):
        file = Path(frame.f_code.co_filename)
        if file.is_relative_to(_PACKAGE) and "__tracebackhide__" not in frame.f_locals:
            return f"{file.relative_to(_PACKAGE).as_posix()}:{line} in {frame.f_code.co_name}"
    return None


def relative_errors(steps: list[ModelRunnerOutput], reference: list[ModelRunnerOutput]) -> list[float]:
    """For each step, norm of the logits' difference over the reference's norm; infinite where not finite.
    ValueError: the two did not run the same requests in the same steps.
    """
    if [s.req_ids for s in steps] != [r.req_ids for r in reference]:
        raise ValueError(
            "the run and its reference went through different batches; logits cannot be compared"
        )
    return [relative_error(s.logits, r.logits) for s, r in zip(steps, reference, strict=True)]
