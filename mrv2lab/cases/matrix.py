"""The detection matrix: every case and variant against every kind of finding, over seeds."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field

from mrv2lab import sources
from mrv2lab.audit import KINDS, SHORT_KINDS, AuditReport
from mrv2lab.cases import CASES
from mrv2lab.cases.base import SEED, Variant
from mrv2lab.results import RECORDS, Kept, Provenance, Role, Rung, Strict, provenance
from mrv2lab.tables import Table, plain_html

FILE = RECORDS / "audit.json"


class Cell(Strict):
    """What audits of one variant found."""

    case: str
    variant: str
    role: Role
    expected_kind: str | None  # of what must come first; None, as the subject, if nothing may be found
    expected_subject: str | None
    unseen: str = ""  # why nothing is found, where there is a bug
    num_seeds: int  # audits made, each with other weights and prompts
    found: dict[str, int]  # kind to the number of audits in which it was found
    missed: int  # audits in which the expected finding did not come first, or what nobody sees was seen
    false_alarms: int  # audits of a variant without a bug that found anything
    subject: str | None  # of the first finding, in the first audit
    where: str | None  # its line


class Matrix(Kept):
    """All cells. The provenance is of cases made together; `made` has that of each made alone since."""

    rung: Rung
    cells: list[Cell]
    made: dict[str, Provenance] = Field(default={})

    @property
    def is_clean(self) -> bool:
        """No miss and no false alarm."""
        return not any(cell.missed or cell.false_alarms for cell in self.cells)

    def with_rows_of(self, newer: "Matrix") -> "Matrix":
        """This matrix with the cases of a newer one. Of other rows nothing is said that was not before."""
        anew = {cell.case: newer.provenance for cell in newer.cells}
        cells = [*newer.cells, *(cell for cell in self.cells if cell.case not in anew)]
        made = self.made | anew
        files = {file for c in cells if c.case not in made for file in sources.of_audit(c.case, self.rung)}
        kept = {file: known for file, known in self.provenance.sources.items() if file in files}
        cells.sort(key=lambda cell: [*CASES].index(cell.case))
        others = self.provenance.model_copy(update={"sources": kept})
        return self.model_copy(update={"provenance": others, "cells": cells, "made": made})


def load(path: Path = FILE) -> Matrix:
    """Read a recorded matrix. RecordError: not there, damaged, or not a matrix."""
    return Matrix.read(path, "matrix", "make it with mrv2lab audit matrix")


def found_as_stated(variant: Variant, report: AuditReport) -> bool:
    """Whether the first finding is the one that the variant states; without one, whether there is none."""
    if variant.finding is None:
        return not report.findings
    kind, subject = variant.finding
    return bool(report.findings) and report.findings[0].kind == kind and subject in report.findings[0].subject


def make(
    rung: Rung,
    seeds: Iterable[int],
    *,
    cases: Iterable[str] = tuple(CASES),
    done: Callable[[str], None] = lambda name: None,
) -> Matrix:
    """Audit every variant of these cases, if they claim the rung, with every seed; `done` hears of each."""
    seeds, cells = list(seeds), []
    chosen = [CASES[name] for name in cases if rung in CASES[name].rungs]
    # Now: the code on disk may change meanwhile.
    made_by = {file: h for case in chosen for file, h in sources.of_audit(case.name, rung).items()}
    made_with = provenance(SEED, uses_gpu=rung == "cuda", made_by=dict(sorted(made_by.items())))
    for case in chosen:
        for variant in case.variants:
            reports = [case.audit(variant.name, rung=rung, seed=seed) for seed in seeds]
            cells.append(_cell(case.name, variant, reports))
            done(f"{case.name} {variant.name}")
    return Matrix(provenance=made_with, rung=rung, cells=cells)


def _cell(case: str, variant: Variant, reports: list[AuditReport]) -> Cell:
    kinds = sorted({kind for report in reports for kind in report.kinds})
    wrong = sum(not found_as_stated(variant, report) for report in reports)
    first = next((report.findings[0] for report in reports if report.findings), None)
    kind, subject = variant.finding or (None, None)
    return Cell(
        case=case,
        variant=variant.name,
        role=variant.role,
        expected_kind=kind,
        expected_subject=subject,
        unseen=variant.unseen,
        num_seeds=len(reports),
        found={kind: sum(kind in report.kinds for report in reports) for kind in kinds},
        missed=wrong if variant.finding or variant.unseen else 0,
        false_alarms=0 if variant.finding or variant.unseen else wrong,
        subject=first.subject if first else None,
        where=str(first.where) if first and first.where else None,
    )


@dataclass(frozen=True, repr=False)
class DetectionTable(Table):
    """A matrix as a table: variants down, kinds across, in each cell the audits in which a kind was found."""

    matrix: Matrix  # from `make` or `load`
    recorded: bool = False  # it comes from a file, and the table has to say so

    def rows(self) -> list[list[str]]:
        """A header, then for each case its name and a row for each of its variants."""
        cells = self.matrix.cells
        seeds = max((cell.num_seeds for cell in cells), default=0)
        heads = [short for kind, short in zip(KINDS, SHORT_KINDS, strict=True) if kind in self._shown]
        # What decides stands behind the names, so that it is seen where a table is wider than the page.
        rows = [[f"found, of {seeds} audits", "miss", "false", *heads]]
        for case in dict.fromkeys(cell.case for cell in cells):
            rows.append([case, *[""] * (len(rows[0]) - 1)])
            rows += [self._row(cell) for cell in cells if cell.case == case]
        return rows

    @property
    def _shown(self) -> list[str]:
        """Kinds that were found or expected anywhere; a column for each of the others would be empty."""
        seen = {kind for cell in self.matrix.cells for kind in (*cell.found, cell.expected_kind)}
        return [kind for kind in KINDS if kind in seen]

    def _row(self, cell: Cell) -> list[str]:
        counts = [f"{cell.found.get(kind, '')}{'*' * (kind == cell.expected_kind)}" for kind in self._shown]
        missed = "-" if cell.unseen and not cell.missed else str(cell.missed)
        return [f" {cell.variant}", missed, str(cell.false_alarms), *counts]

    def _repr_html_(self) -> str:
        rows = [[re.sub("^ ", "\u2003", name), *cells] for name, *cells in self.rows()]  # HTML keeps that
        return plain_html(rows, self._below())

    def _below(self) -> str:
        recorded = "recorded: " if self.recorded else ""
        unseen = dict.fromkeys(f"- not seen: {cell.unseen}\n" for cell in self.matrix.cells if cell.unseen)
        alone = [f"- {case}: {recorded}{made.label}\n" for case, made in self.matrix.made.items()]
        told = "".join([*unseen, *alone])
        return f"{told}* expected; {recorded}{self.matrix.rung}, {self.matrix.provenance.label}"
