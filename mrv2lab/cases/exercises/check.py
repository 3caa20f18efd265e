"""A reader's repair, judged: solved or not yet, the first wrong step, and why, if that was seen."""

from dataclasses import dataclass, field
from typing import Literal

from mrv2lab import looks
from mrv2lab.cases.exercises.watch import Trouble
from mrv2lab.results import Run
from mrv2lab.tables import band, failure, failure_html, rung_line
from mrv2lab.verdict import TOLERANCE


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
            return f": {self.run.verdict}{', with a remark' * bool(self.remarks)}"
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
            return f"step {wrong + 1} of {len(modes)} went wrong first: relative error {error}, {how}"
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
