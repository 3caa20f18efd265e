"""An engine with one or two faults, chosen by a seed, and the game around it."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from mrv2lab import journal
from mrv2lab.audit import AuditReport
from mrv2lab.cases.base import best_rung
from mrv2lab.errors import BadInput
from mrv2lab.mystery import runs
from mrv2lab.mystery.answer import Answer, Guess, Story, marked
from mrv2lab.mystery.engine import build, make_ready
from mrv2lab.mystery.faults import COMBINATIONS, Fault
from mrv2lab.results import Run
from mrv2lab.runner import ModelRunner
from mrv2lab.tables import Table, band, rung_line

EXAMPLE = 12
"""The seed that `notebooks/40_mystery.ipynb` itself plays to the end: nobody's merit, so it is not noted."""


def faults_of(seed: int) -> tuple[Fault, ...]:
    """The same on every machine and every Python. BadInput: the seed is no whole number from 0 on."""
    if not isinstance(seed, int) or isinstance(seed, bool) or seed < 0:
        raise BadInput(f"seed {seed!r}; possible: whole numbers from 0 on")
    digest = hashlib.sha256(f"mrv2lab mystery {seed}".encode()).digest()
    return COMBINATIONS[int.from_bytes(digest[:8], "big") % len(COMBINATIONS)]


def level(seed: int) -> int:
    """1 for one fault that an audit names; one more for a second, and for one that a human has to find."""
    faults = faults_of(seed)
    return len(faults) + any(fault.human for fault in faults)


class Mystery:
    """An engine of which you know that something in it is wrong. The same seed gives the same mystery.

    Args:
        seed: a whole number from 0 on.
        rung: `emulated`, `cuda`, or `auto` for the more real one of these that this machine has.

    BadInput: another seed or rung.
    """

    def __init__(self, seed: int, rung: str = "auto"):
        self._faults = faults_of(seed)
        self.seed, self.rung = seed, best_rung(rung)
        self._is_solved = False

    def __repr__(self) -> str:
        return f"Mystery({self.seed})"

    def runner(self) -> ModelRunner:
        """A runner, warmed up and captured, to take apart. CaptureError: it cannot be; the audit says why."""
        runner = build(runs.parts_of(self._faults), self.rung)
        make_ready(runner)
        return runner

    def run(self, *, graphs: bool = True) -> Run:
        """Serve the workload, with graphs or with them switched off, and judge every step."""
        run = runs.run_with(self._faults, self.rung, graphs=graphs)
        return run.model_copy(update={"case": f"mystery_{self.seed}"})

    def runs(self) -> list[Run]:
        return [self.run(graphs=False), self.run()]

    def steps(self, *, at_once: bool = False) -> "RunTable":
        """What each step was made of, and whether it was right.

        Logits are looked at when all steps have been served, or, `at_once`, when each step ends.
        """
        served = runs.serve_with(self._faults, self.rung, True)
        errors, asked = served.errors_at_once if at_once else served.run.errors, runs.batches(self.rung)
        unknown = ["none"] * len(asked)  # of a run that crashed
        modes, bands = served.run.step_modes or unknown, list(map(band, errors)) or unknown
        sizes = ([str(i), str(batch.num_reqs), str(batch.num_tokens)] for i, batch in enumerate(asked))
        rows = [[*size, mode, error] for size, mode, error in zip(sizes, modes, bands, strict=True)]
        return RunTable([["step", "requests", "tokens", "ran as", "error"], *rows], served.run)

    def buffers(self, step: int) -> "RunTable":
        """What input buffers hold when a step begins, beside what was asked for. BadInput: no such step."""
        self._check(step)
        return RunTable(runs.buffers_with(self._faults, self.rung, step), self.run())

    def audit(self, step: int | None = None) -> AuditReport:
        """Audit a step: its replay beside an eager pass over the same buffers. By default the first that went
        wrong of those that a graph should have replayed. BadInput: no such step, or one that fits no graph.
        """
        step = runs.suspects(self._faults, self.rung)[0] if step is None else step
        self._check(step)
        asked = runs.batches(self.rung)
        if not asked[step].fits_a_graph:
            fit = ", ".join(str(i) for i, batch in enumerate(asked) if batch.fits_a_graph)
            has = f"step {step} has {asked[step].num_tokens} tokens and fits no graph"
            raise BadInput(f"{has}, so nothing is replayed; possible: {fit}")
        return runs.audit_with(self._faults, self.rung, step)

    def _check(self, step: int) -> None:
        most = len(runs.batches(self.rung)) - 1
        if not 0 <= step <= most:
            raise BadInput(f"step {step}; possible: 0 to {most}")

    def answer(
        self, kind: str | Sequence[str], place: str | Sequence[str], cause: str | Sequence[str]
    ) -> Answer:
        """Name what is wrong: one fault, or two by giving two of each.

        Args:
            kind: what the audit calls it, or `audit-silent` if it finds nothing.
            place: one of `PLACES`.
            cause: the host value or the tensor that it hangs on, as the source calls it.

        Raises:
            BadInput: an unknown kind or place, or not as many of one as of the others.
        """
        given = (kind, place, cause)
        kinds, places, causes = ([one] if isinstance(one, str) else list(one) for one in given)
        if not len(kinds) == len(places) == len(causes) or not 1 <= len(kinds) <= 2:
            counts = f"{len(kinds)} kinds, {len(places)} places and {len(causes)} causes"
            raise BadInput(f"{counts}; possible: one of each, or two of each")
        guesses = tuple(Guess(*named) for named in zip(kinds, places, causes, strict=True))
        answer = marked(guesses, self._faults, self.rung)
        self._is_solved = self._is_solved or answer.is_solved
        if self.seed != EXAMPLE:
            journal.note("mysteries", self.seed, journal.Score(points=answer.points, of=answer.most_points))
        return answer

    def story(self, *, give_up: bool = False) -> Story:
        """What was wrong, and how such a thing comes about; once it is solved, or when you give up."""
        return Story(self._faults if self._is_solved or give_up else ())


@dataclass(frozen=True, repr=False)
class RunTable(Table):
    """What was looked up of a run."""

    lines: Sequence[Sequence[str]]  # a header, then a row for each step or buffer
    run: Run  # which it was; one that crashed has no steps

    def rows(self) -> Sequence[Sequence[str]]:
        return self.lines

    def _below(self) -> str:
        return rung_line(self.run)
