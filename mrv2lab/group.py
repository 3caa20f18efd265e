"""For whoever leads a group: what its members have solved, and two mysteries as hard as each other."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from pydantic import ValidationError

from mrv2lab import guesses
from mrv2lab.errors import BadInput, printable
from mrv2lab.journal import Line

if TYPE_CHECKING:
    from mrv2lab.mystery.survey import Surveyed

_RIGHT = {name: guess.right for name, guess in guesses.GUESSES.items()}


def read(files: Sequence[Path]) -> tuple[dict[str, dict[str, Line]], list[str]]:
    """Exports, file by file, and what of them cannot be read. Of one item the last line counts."""
    members: dict[str, dict[str, Line]] = {}
    broken = []
    for file in {path.resolve(): path for path in files}.values():  # of two names of one file the last
        name = printable(str(file))
        try:
            text = file.read_text("utf-8-sig", errors="replace")
        except OSError as error:
            broken.append(f"{name}: {error.strerror}")
            continue
        lines, left_out = dict[str, Line](), list[str]()
        for number, written in ((n, line) for n, line in enumerate(text.split("\n"), 1) if line.strip()):
            try:
                line = Line.model_validate_json(written)
                lines[line.name] = line
            except ValidationError as error:
                left_out.append(f"{name}:{number}: {error.errors()[0]['msg']}")
        if lines or not left_out:
            members[name] = lines
            broken += left_out
        else:
            broken.append(f"{name}: no line of it is one of `mrv2lab progress --export`")
    return members, broken


def rows(members: dict[str, dict[str, Line]]) -> list[list[str]]:
    names = sorted({name for lines in members.values() for name in lines}, key=lambda name: (len(name), name))
    found = [["item or file", "solved", "minutes (median)", "hints", "guesses right"]]
    for name in names:
        lines = [lines[name] for lines in members.values() if name in lines]
        solved = "-" if name == "guesses" else f"by {len(lines)} of {len(members)}"
        found.append([name, solved, *_sums(lines)])
    for file, of_file in members.items():
        found.append([file, str(sum(name != "guesses" for name in of_file)), *_sums(of_file.values())])
    return found


def _sums(lines: Collection[Line]) -> list[str]:
    minutes = [line.minutes for line in lines if line.minutes is not None]
    guessed = [guess for line in lines for guess in line.guesses.items()]
    guesses = [_RIGHT[name] == letter for name, letter in guessed if name in _RIGHT]
    right = f"{sum(guesses)} of {len(guesses)}" if guesses else "-"
    return [f"{median(minutes):.0f}" if minutes else "-", str(sum(line.hints for line in lines)), right]


def pair(seeds: Sequence[Surveyed], played: int) -> tuple[int, int]:
    """The first two mysteries of one fault that a survey finds equally hard: for before a session, and after.

    What an audit finds, at which step, or why it finds nothing, is the same. Their faults differ from each
    other and from that of the seed `played`, which all have read.
    """
    known = next(seen.faults for seen in seeds if seen.seed == played)
    hard: dict[object, Surveyed] = {}
    for seen in (seen for seen in seeds if len(seen.faults) == 1 and seen.faults != known):
        found = [(named.split(":")[0], named.rsplit(" ")[-1]) for named in seen.found.values()]
        first = hard.setdefault(str((seen.verdict, found, seen.human.values())), seen)
        if first.faults != seen.faults:
            return first.seed, seen.seed
    raise BadInput("the survey knows no two mysteries that are equally hard")
