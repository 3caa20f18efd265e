"""The history of a bug: the same probe on release after release, as each was published.

A cell is a word and the observation behind it. No word is looked up anywhere: it is what the probe saw.
"""

import os
from bisect import bisect_left
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from pydantic import Field

from mrv2lab import progress
from mrv2lab.results import RECORDS, Kept
from mrv2lab.upstream import process
from mrv2lab.upstream.outcome import Cell
from mrv2lab.upstream.releases import cached

Done = Callable[[str], None]

DATA = RECORDS / "history.json"


class Observed(Cell):
    """A cell, and where in the table it stands."""

    case: str
    release: str

    @property
    def line(self) -> str:
        """Name of the table's line: the case, and its row if it has several."""
        return f"{self.case}, {self.row}" if self.row else self.case


class History(Kept):
    """Cells and how they were made; kept as a file."""

    cells: list[Observed] = Field(min_length=1)

    @property
    def label(self) -> str:
        """One line for captions: `rung: source (recorded: CPU, torch ..., date)`."""
        return f"rung: source (recorded: {self.provenance.label})"

    def of(self, *lines: str) -> list[Observed]:
        """The cells of these lines of the table, or of these cases."""
        return [cell for cell in self.cells if {cell.line, cell.case} & set(lines)]


def load(path: Path = DATA) -> History:
    """Read and check a history. RecordError: not there, not JSON, or not a history; says what to do."""
    again = "make it again with mrv2lab history --all --save FILE"
    return History.read(path, "history that can be read", again)


def here_or_recorded(case: str, releases: Sequence[str]) -> tuple[list[Observed], str]:
    """Cells of releases that are in the cache already, or what was recorded; and a line that says which.
    ProbeFailed: release and libraries are here, and a probe failed all the same.
    """
    try:
        if all(map(cached, releases)):
            ended, num_probes = count(1), len(releases)
            with progress.shown(f"probing {case}"):
                cells = observe([case], releases, done=lambda it: progress.tell(it, next(ended) / num_probes))
            return cells, "rung: source (run here, on the CPU)"
    except process.LibraryMissing:
        pass
    history = load()
    return [cell for cell in history.of(case) if cell.release in releases], history.label


def observe(cases: Sequence[str], releases: Sequence[str], *, done: Done = lambda it: None) -> list[Observed]:
    """Probe every case on every release, two at a time where there are two cores; `done` hears of each.
    ReleaseUnavailable: a release is neither in the cache nor in reach. ProbeFailed: a probe had no result.
    """

    def probe(job: tuple[str, str]) -> list[Observed]:
        cells = _probe(*job)
        done(" ".join(job))
        return cells

    jobs = [(case, release) for case in cases for release in releases]
    with ThreadPoolExecutor(min(2, os.cpu_count() or 1)) as pool:
        return [cell for cells in pool.map(probe, jobs) for cell in cells]


def _probe(case: str, release: str) -> list[Observed]:
    return [Observed(case=case, release=release, **dict(cell)) for cell in process.tell_rows(case, release)]


@dataclass(frozen=True)
class Turn:
    """Where one line of the table turns."""

    line: str
    first_bad: str | None  # first release that shows the bug; None if none does
    first_good: str | None  # first release behind it, or first of all, that is fixed; None if none is


def bisect(
    case: str, releases: Sequence[str], *, done: Done = lambda name: None
) -> tuple[list[Turn], list[Observed]]:
    """Find where a bug comes and goes with as few probes as a binary search needs.

    It takes for granted that releases, the oldest first, go from `not there` to `buggy` to `fixed`, and never
    back. Returns the turns, one for each row of the bug, and the cells that were probed for them.
    ReleaseUnavailable, ProbeFailed: as `observe`, or a probe cannot tell what a release shows.
    """
    probed: dict[str, dict[str, Observed]] = {}

    def at(release: str) -> dict[str, Observed]:
        if release not in probed:
            probed[release] = {cell.line: cell for cell in _probe(case, release)}
            done(f"{case} {release}")
        return probed[release]

    def turn(line: str) -> Turn:
        bad, good = (bisect_left(releases, n, key=lambda release: _phase(at(release)[line])) for n in (1, 2))
        first_good = releases[good] if good < len(releases) else None
        return Turn(line, releases[bad] if bad < good else None, first_good)

    turns = [turn(line) for line in at(releases[-1])]
    return turns, [cell for release in releases for cell in probed.get(release, {}).values()]


def _phase(cell: Observed) -> int:
    if cell.word == "unreachable":
        raise process.ProbeFailed(f"{cell.line} on vllm {cell.release}: {cell.observation}")
    return {"not there": 0, "buggy": 1, "fixed": 2, "replaced": 2}[cell.word]
