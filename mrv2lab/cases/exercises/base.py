"""A case's exercise: the watch in its seam, hints, mistakes that are known by what they do, and a check of
it: solved or not yet, the first wrong step, and why, if that was seen.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal
from unittest.mock import patch

from mrv2lab import looks
from mrv2lab.cases.exercises.shared import put_back
from mrv2lab.cases.exercises.watch import Trouble, Watch, require_function
from mrv2lab.lifeline import memory_limit
from mrv2lab.results import Run
from mrv2lab.tables import band, failure, failure_html, rung_line
from mrv2lab.verdict import TOLERANCE

_NOBODY = "input() waits for an answer, and nobody gives one while a repair is checked"


@dataclass(frozen=True)
class Explanation:
    """A mistake that was observed: what was seen, and why that is no repair."""

    name: str
    seen: str
    why: str


@dataclass(frozen=True, repr=False)
class Check:
    """A reader's repair, judged."""

    run: Run  # what it showed; its verdict is that of any variant
    trouble: Trouble | None = None  # the exception, if there was one, with the reader's own line
    # of the mistake that was recognised. None: nothing that is known was seen, and nothing is made up.
    explanation: Explanation | None = None
    remarks: tuple[Explanation, ...] = ()  # on a repair that is right, and depends on more than it says
    changed: tuple[str, ...] = ()  # what of mrv2lab the function replaced. It was put back.
    harder: dict[str, int] = field(default_factory=dict)  # what was changed in the case's shape for this run

    @property
    def solved(self) -> bool:
        return self.run.as_expected and not self.explanation and not self.changed

    @property
    def status(self) -> Literal["solved", "not solved yet", "not judged"]:
        if self.trouble and self.trouble.is_cut_off:
            return "not judged"
        return "solved" if self.solved else "not solved yet"

    @property
    def first_wrong(self) -> int | None:
        """Index of the first step whose error is too large."""
        return next((i for i, error in enumerate(self.run.errors) if error > TOLERANCE), None)

    def lines(self) -> list[str]:
        """The judgement: the status first, then a line for each thing that was observed."""
        told = [f"{self.status}{self._verdict()}", self._what_happened(), self._place(), self._changed()]
        told += [f"seen: {e.seen}\nwhy: {e.why}" for e in [self.explanation] if e]
        told += [f"remark: {e.seen} {e.why}" for e in self.remarks if self.solved]
        return [line for line in told if line]

    def _verdict(self) -> str:
        if self.status == "not judged":
            return ""
        if self.trouble and self.trouble.is_stub:
            return f": {self.run.variant} is still the stub"
        if self.run.as_expected and not self.solved:
            return f", though the verdict is {self.run.verdict}"
        if not self.harder:
            return f": {self.run.verdict}{'; there is a remark, below' * bool(self.remarks)}"
        shape = ", ".join(f"{name}={value}" for name, value in self.harder.items())
        return f": {self.run.verdict} when it was also tried with {shape}"

    def _what_happened(self) -> str:
        if self.trouble and not self.trouble.is_stub:
            return f"{self.trouble.error}: {self.trouble.message}"
        if self.run.raised:
            return "" if self.trouble else (self.run.message or "")
        modes, wrong = self.run.step_modes, self.first_wrong
        if wrong is not None:
            how = "replayed from a graph" if modes[wrong] == "graph" else "run eagerly"
            error = band(self.run.errors[wrong])
            return f"step {wrong} (of 0 to {len(modes) - 1}) went wrong first: relative error {error}, {how}"
        right = f"{len(modes)} steps of {len(modes)} are right, {modes.count('graph')} of them replayed"
        if self.run.verdict != "eager":
            return right
        share = f"{self.run.eager_share or 0:.0%} of a model's work"
        return f"{right}; in a step that fits a graph up to {share} was not done by one"

    def _place(self) -> str:
        place = self.trouble.place if self.trouble and not self.trouble.is_stub else None
        return f"your {place}" if place else ""

    def _changed(self) -> str:
        replaced = f"{self.run.variant} replaced {', '.join(self.changed)}, which every run shares"
        rest = "it was put back. Change what the function is given, and nothing else"
        return f"{replaced}; {rest}" if self.changed else ""

    def __repr__(self) -> str:
        is_told = self._place() or self.explanation or (self.trouble and self.trouble.is_no_fault)
        traceback = [] if is_told else failure(self.run)[1:]
        return "\n".join([*self.lines(), *traceback, rung_line(self.run)])

    def _repr_html_(self) -> str:
        tone = "between" if self.status == "not judged" else looks.tone(self.solved)
        traceback = "" if self.trouble and self.trouble.is_no_fault else failure_html(self.run, is_told=True)
        return looks.part(looks.piece("check", self, tone, traceback, rung_line(self.run)))


RunWatch = Callable[[Watch, dict[str, int], dict[str, int]], Run]
"""Runs a case with a watch in its seam: at its own shape, with the first numbers where the reader gives none
and with the second ones whatever the reader gives."""


@dataclass(frozen=True, repr=False)
class Hint:
    """One rung of the ladder."""

    number: int
    text: str

    def __repr__(self) -> str:
        return f"hint {self.number}: {self.text}"


Observed = Iterator[tuple[str, dict[str, object]]]
"""What was observed: a mistake or a remark by its name, and what stands in the gaps of its text `seen`."""

Look = Callable[[Run, Any], Observed]
"""Given a run, and the case's own watch with what it has noted."""


@dataclass(frozen=True)
class Exercise:
    """What `Case.check`, `Case.hint` and `Case.solution` are made of; texts and numbers come out of TOML."""

    hints: tuple[str, ...] = ()  # three, from a question to the names of what has to be written
    seen: dict[str, str] = field(default_factory=dict)  # of a mistake or remark; with gaps, as for numbers
    why: dict[str, str] = field(default_factory=dict)  # that is no repair, or depends on more than it says
    solution: str = ""  # name of the variant that upstream chose, or that we propose where upstream has none
    whose: str = "upstream"  # or `ours`
    # what people would try, known by what it does. The first one that was observed is explained, so special
    # ones stand before general ones.
    mistakes: Look = lambda run, watch: iter(())
    even_if_right: Look = lambda run, watch: iter(())  # more, looked for where the answer is right as well
    remarks: Look = lambda run, watch: iter(())  # on a right answer, which is no less solved
    shape: dict[str, int] = field(default_factory=dict)  # of a check, where fewer will do: the reader waits
    # further shapes at which a repair must hold, tried when that one is right. Among them each graph that is
    # captured is replayed: of one that is not, a check says nothing.
    harder: tuple[dict[str, int], ...] = ()
    watch: Callable[[Callable[..., Any]], Watch] = field(default=Watch)  # what stands in the seam

    def check(self, fn: Callable[..., Any], run: RunWatch) -> Check:
        """Run a reader's function at the exercise's shape and, if it is right there, at harder ones. Returns
        the first check that is not solved, else the first. BadInput: as
        `require_function`.
        """
        require_function(fn)
        first = self._check_once(fn, run, {})
        further = (self._check_once(fn, run, changes) for changes in self.harder if first.solved)
        return next((check for check in further if not check.solved), first)

    def _check_once(self, fn: Callable[..., Any], run: RunWatch, changes: dict[str, int]) -> Check:
        watch = self.watch(fn)
        try:
            asked = patch("builtins.input", side_effect=RuntimeError(_NOBODY))
            with asked, put_back() as changed, memory_limit():
                ran = run(watch, {} if changes else self.shape, changes)
        except KeyboardInterrupt as stopped:  # by the reader, whom a notebook tells no more than that
            told = f"KeyboardInterrupt: the check of {watch.__name__} was interrupted"
            stopped._render_traceback_ = lambda: [told]  # type: ignore[attr-defined]
            raise
        finally:
            watch.collect()
        looks = [] if ran.as_expected else [self.mistakes]
        says_nothing = watch.trouble is not None and watch.trouble.is_no_fault
        made = [] if says_nothing else self._explained([*looks, self.even_if_right], ran, watch)
        remarks = self._explained([self.remarks] if ran.as_expected else [], ran, watch)
        return Check(ran, watch.trouble, next(iter(made), None), tuple(remarks), tuple(changed), changes)

    def _explained(self, looks: Iterable[Look], run: Run, watch: Watch) -> list[Explanation]:
        found = ((*each, self.why[each[0]]) for look in looks for each in look(run, watch))
        return [Explanation(n.replace("_", " "), self.seen[n].format(**said), why) for n, said, why in found]
