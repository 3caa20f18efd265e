"""How an answer is judged, what is told about a wrong one, and the story behind a right one."""

import ast
import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from inspect import getsource

from mrv2lab import looks
from mrv2lab.audit import KINDS
from mrv2lab.errors import choose
from mrv2lab.mystery import runs
from mrv2lab.mystery.faults import AUDIT_SILENT, RIGHT_PARTS, Fault
from mrv2lab.results import Rung
from mrv2lab.tables import aligned, plain_html

GUESSED_KINDS = (*KINDS, AUDIT_SILENT)
"""The kinds of the audit, and `audit-silent` for what it cannot find."""

PLACES = tuple(RIGHT_PARTS)
"""What an answer may name as the place: `file.seam` below `mrv2lab/mystery/engine`."""

_MARKS_PER_FAULT = 3
_A_NAME = 4  # identifiers: `self.input_buffers.positions` has three. Who names them all has named none


@dataclass(frozen=True)
class Guess:
    kind: str
    place: str
    cause: str

    def __post_init__(self) -> None:
        """BadInput: an unknown kind or place; says what is possible."""
        choose("kind", self.kind, list(GUESSED_KINDS))
        choose("place", self.place, list(PLACES))

    def marks(self, fault: Fault | None) -> tuple[bool, bool, bool]:
        if fault is None:
            return False, False, False
        named = {word.lower() for word in re.findall(r"\w+", self.cause)}
        is_cause = bool(named & {cause.lower() for cause in fault.causes})
        is_a_name = len(named & _identifiers(fault)) <= _A_NAME
        return self.kind in fault.kinds, self.place == fault.place, is_cause and is_a_name


def _identifiers(fault: Fault) -> set[str]:
    """What the code at fault has names for."""
    nodes = ast.walk(ast.parse(getsource(fault.part)))
    found = (getattr(node, key, None) for node in nodes for key in ("id", "attr", "arg"))
    return {name.lower() for name in found if isinstance(name, str)}


@dataclass(frozen=True, repr=False)
class Answer:
    """An answer with its marks: three for each fault, and one for the right number of them."""

    guesses: tuple[Guess, ...]  # what was named
    marks: tuple[tuple[bool, bool, bool], ...]  # for each guess, whether kind, place and cause are right
    num_faults: int  # how many there are
    remarks: tuple[str, ...]  # for what is not right, what speaks against it

    @property
    def points(self) -> int:
        return sum(map(sum, self.marks)) + (len(self.guesses) == self.num_faults)

    @property
    def most_points(self) -> int:
        return _MARKS_PER_FAULT * self.num_faults + 1

    @property
    def is_solved(self) -> bool:
        return self.points == self.most_points

    def rows(self) -> list[list[str]]:
        rows = [["", "kind", "place", "cause"]]
        for guess, marks in zip(self.guesses, self.marks, strict=True):
            rows.append(["you said", guess.kind, guess.place, guess.cause])
            rows.append(["", *("right" if mark else "no" for mark in marks)])
        return rows

    @property
    def _note(self) -> str:
        number = "right" if len(self.guesses) == self.num_faults else "no"
        score = f"number of faults: {number}; {self.points} of {self.most_points} points"
        return f"{score}: solved" if self.is_solved else score

    def __repr__(self) -> str:
        return "\n".join([aligned(self.rows()), self._note, *(f"- {remark}" for remark in self.remarks)])

    def _repr_html_(self) -> str:
        remarks = looks.part(looks.piece("remarks", self.remarks)) if self.remarks else ""
        return plain_html(self.rows(), self._note) + remarks


def marked(guesses: Sequence[Guess], faults: tuple[Fault, ...], backend: Rung) -> Answer:
    """Judge guesses: each is held against the fault that it fits best."""
    places = max(len(guesses), len(faults))
    padded: list[Fault | None] = [*faults, *[None] * (places - len(faults))]
    matchings = itertools.permutations(padded, len(guesses))
    best = max(matchings, key=lambda m: sum(sum(g.marks(f)) for g, f in zip(guesses, m, strict=True)))
    marks = tuple(guess.marks(fault) for guess, fault in zip(guesses, best, strict=True))
    remarks: list[str] = []
    for guess, (is_kind, is_place, is_cause) in zip(guesses, marks, strict=True):
        if not is_kind:
            remarks.append(_against_kind(guess.kind, faults, backend))
        if not is_place:
            remarks.append(_against_place(guess.place, faults, backend))
        elif not is_cause:
            other = "Which value or tensor is another one there than it should be? Name that one."
            remarks.append(
                f"{guess.place} is the place, and {guess.cause!r} is not what it hangs on. {other}"
            )
    remarks += _against_number(guesses, faults, backend)
    return Answer(tuple(guesses), marks, len(faults), tuple(dict.fromkeys(remarks)))


# ---- what speaks against a guess ----


def _against_kind(kind: str, faults: tuple[Fault, ...], backend: Rung) -> str:
    run, steps = runs.run_with(faults, backend), runs.suspects(faults, backend)
    if run.raised:
        return f"{kind}: capture is refused, and the audit finds one thing, of another kind."
    if kind == "host-sync":
        return "host-sync: capture went through, so the host waited for nothing."
    if kind == "silent-eager" and not runs.ran_eagerly(run, backend):
        return "silent-eager: every step that fits a graph replayed one."
    reports = {number: runs.audit_with(faults, backend, number) for number in steps}
    loud = [number for number, report in reports.items() if report.findings]
    if kind == "audit-silent" and loud:
        return f"audit-silent: the audit of step {loud[0]} is not."
    if any(kind in report.kinds for report in reports.values()):
        return f"{kind}: an audit reports it, as a consequence or of something else. The cause comes first."
    numbers = " or ".join(map(str, steps))
    return f"{kind}: no audit of step {numbers}, where it goes wrong first, reports anything of this kind."


def _against_place(place: str, faults: tuple[Fault, ...], backend: Rung) -> str:
    """Put what belongs there into the place, and run again."""
    without = tuple(fault for fault in faults if fault.place != place)
    before, after = (runs.run_with(chosen, backend) for chosen in (faults, without))
    if (before.verdict, before.errors, before.step_modes) == (after.verdict, after.errors, after.step_modes):
        return f"{place}: with a sound part put there, every step shows what it showed before."
    return f"{place}: something is wrong there, but it does not go with the rest of what you said."


def _against_number(guesses: Sequence[Guess], faults: tuple[Fault, ...], backend: Rung) -> list[str]:
    named = {guess.place for guess in guesses}
    rest = tuple(fault for fault in faults if fault.place not in named)
    if len(guesses) < len(faults) and len(rest) < len(faults):
        verdict = runs.run_with(rest, backend).verdict
        return [f"With a sound part at {', '.join(sorted(named))} the verdict is {verdict}: there is more."]
    if len(guesses) > len(faults) and not rest:
        return ["One sound part, at the right place, is enough for the verdict correct: there is less."]
    return []


# ---- the story ----


@dataclass(frozen=True, repr=False)
class Story:
    """What was wrong, fault by fault; nothing while the mystery is open."""

    faults: tuple[Fault, ...]

    def __repr__(self) -> str:
        if not self.faults:
            return "not solved yet: answer first, or ask for story(give_up=True)"
        return "\n\n".join(f"{fault.title}\n{fault.story}\n\n{fault.repair}" for fault in self.faults)

    def _repr_html_(self) -> str:
        return looks.part(looks.piece("story", self.faults, repr(self)))
