"""For whoever leads a group: what its members have solved, and mysteries as hard as each other."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from pydantic import ValidationError

from mrv2lab import guesses
from mrv2lab.journal import Line

if TYPE_CHECKING:
    from mrv2lab.mystery.survey import Surveyed

_RIGHT = {name: guess.right for name, guess in guesses.GUESSES.items()}


def read(files: Sequence[Path]) -> tuple[dict[str, dict[str, Line]], list[str]]:
    """Exports, file by file, and which of their lines cannot be read. Of one item the last line counts."""
    members: dict[str, dict[str, Line]] = {}
    broken = []
    for file in files:
        try:
            text = file.read_text("utf-8-sig", errors="replace")
        except OSError as error:
            broken.append(f"{file}: {error.strerror}")
            continue
        members[str(file)] = {}
        for number, written in enumerate(text.split("\n"), start=1):
            try:
                lines = [Line.model_validate_json(written)] if written.strip() else []
            except ValidationError as error:
                broken.append(f"{file}:{number}: {error.errors()[0]['msg']}")
            else:
                members[str(file)] |= {line.name: line for line in lines}
    return members, broken


def rows(members: dict[str, dict[str, Line]], first: Iterable[str]) -> list[list[str]]:
    """A header, a row for each item, those of `first` before the others, and one for each file."""
    names = sorted({name for lines in members.values() for name in lines}, key=lambda name: (len(name), name))
    found = [["item or file", "solved", "minutes (median)", "hints", "guesses right"]]
    for name in dict.fromkeys([*(name for name in first if name in names), *names]):
        lines = [lines[name] for lines in members.values() if name in lines]
        found.append([name, f"by {len(lines)} of {len(members)}", *_sums(lines)])
    for file, of_file in members.items():
        found.append([file, str(sum(name != "guesses" for name in of_file)), *_sums(of_file.values())])
    return found


def _sums(lines: Collection[Line]) -> list[str]:
    minutes = [line.minutes for line in lines if line.minutes is not None]
    guessed = [guess for line in lines for guess in line.guesses.items()]
    guesses = [_RIGHT[name] == letter for name, letter in guessed if name in _RIGHT]
    right = f"{sum(guesses)} of {len(guesses)}" if guesses else "-"
    return [f"{median(minutes):.0f}" if minutes else "-", str(sum(line.hints for line in lines)), right]


def pairs(seeds: Sequence[Surveyed], but: Iterable[str] = ()) -> list[tuple[Surveyed, Surveyed]]:
    """Mysteries that a survey cannot tell apart by how hard they are, with no fault in common.

    Returns:
        One pair for each degree, those with one fault first. None has a fault of `but`.
    """
    found: dict[object, tuple[Surveyed, Surveyed]] = {}
    usable = [seen for seen in seeds if not set(seen.faults) & set(but)]
    for seen in sorted(usable, key=lambda seen: (len(seen.faults), seen.seed)):
        alike = (o for o in usable if _degree(o) == _degree(seen) and not set(o.faults) & set(seen.faults))
        if other := next(alike, None):
            found.setdefault(_degree(seen), (seen, other))
    return list(found.values())


def _degree(seen: Surveyed) -> object:
    """How hard it is: its verdict, what audits find at which step, and what no audit finds."""
    named = sorted((found.split(":")[0], found.rsplit(" ", 1)[-1]) for found in seen.found.values())
    return len(seen.faults), seen.verdict, tuple(named), tuple(sorted(seen.human.values()))
