"""Verdicts as a table, in text and in HTML.

Nothing in it moves from run to run or from machine to machine, except the line that names the rung:
notebooks are compared by what their tables print.
"""

import html
from collections.abc import Sequence
from dataclasses import dataclass

from mrv2lab import looks
from mrv2lab.audit import AuditReport
from mrv2lab.results import Run
from mrv2lab.upstream.history import Observed
from mrv2lab.verdict import ALLOWED


def rung_line(run: Run, *, recorded: bool = False) -> str:
    """What kind of machine stands behind a run, in one line; of a recorded one also versions and date."""
    if recorded and run.provenance:
        return f"rung: {run.rung} (recorded: {run.provenance.label})"
    gpu = run.provenance.gpu if run.provenance else None
    what = gpu or "a model of capture on the CPU: verdicts, no speeds"
    if run.rung == "source" and run.provenance:
        what = f"vllm {run.provenance.vllm}'s own classes on {what}"
    return f"rung: {run.rung} ({what})"


def as_stated(run: Run) -> str:
    """`yes`, or the verdict that it should have been."""
    return "yes" if run.as_expected else f"must be {run.expected}"


def error_band(run: Run) -> str:
    """The largest error, as coarse as a verdict needs it."""
    return band(run.max_error) if run.errors else "no result"


def eager_band(run: Run) -> str:
    """How much of a model's work was done eagerly where a graph fits, as coarse as a verdict needs it."""
    if run.eager_share is None:
        return "-"
    return "> 10%" if run.eager_share > ALLOWED else "≤ 10%"


def band(error: float) -> str:
    """An error, so coarse that it reads the same on every machine."""
    for bound in (1e-3, 1e-1):
        if error <= bound:
            return f"≤ {bound:g}"
    return "> 0.1"


def failure(run: Run) -> list[str]:
    """What was raised in a run that failed, then its traceback. Nothing of others: their verdict says it."""
    return [f"{run.variant} failed: {run.message}", *run.log_tail] if run.verdict == "failed" else []


def failure_html(run: Run, is_told: bool = False) -> str:
    """The same, with the traceback closed at first; what was raised is left out where it is told already."""
    if not (lines := list(map(html.escape, failure(run)))):
        return ""
    head, traceback = "traceback" if is_told else lines[0], "\n".join(lines[1:])
    return f"<details><summary>{head}</summary><pre>{traceback}</pre></details>"


def aligned(lines: Sequence[Sequence[str]]) -> str:
    """Cells as text, in columns."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def plain_html(lines: Sequence[Sequence[str]], note: str) -> str:
    """Cells as HTML: a header, then rows that begin with a name; words of verdicts in their colours."""
    head = "".join(f"<th>{html.escape(text)}</th>" for text in lines[0])
    rows = [[f"<td>{html.escape(name)}</td>", *map(looks.cell, rest)] for name, *rest in lines[1:]]
    body = "".join(f"<tr>{''.join(cells)}</tr>" for cells in rows)
    return _html_table(head, body, note)


def _html_table(head: str, body: str, note: str, below: str = "") -> str:
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return looks.part(f'{table}{below}<p class="quiet"><small>{html.escape(note)}</small></p>')


@dataclass(frozen=True, repr=False)
class CrashTable:
    """Recorded crashes: what was reported, and at which line. Crashes that read alike share a row.

    Args:
        runs: from `results.recorded`; those that did not crash are left out.
        by: shape names that get a column.
    """

    runs: Sequence[Run]
    by: Sequence[str] = ()

    @property
    def header(self) -> list[str]:
        return [name.replace("_", " ") for name in ("variant", *self.by, "reported_at", "message")]

    def rows(self) -> list[tuple[str, ...]]:
        """One row of cells for each crash that differs from the others."""
        crashes = [run for run in self.runs if run.verdict == "crash"]
        cells = [
            (run.variant, *(str(run.shape[name]) for name in self.by), run.where or "", run.message or "")
            for run in crashes
        ]
        return list(dict.fromkeys(cells))

    @property
    def _source(self) -> str:
        provenance = self.runs[0].provenance if self.rows() else None
        return f"recorded: {provenance.label}" if provenance else "no crash is recorded"

    def __repr__(self) -> str:
        return f"{aligned([self.header, *self.rows()])}\n{self._source}"

    def _repr_html_(self) -> str:
        return plain_html([self.header, *self.rows()], self._source)


@dataclass(frozen=True, repr=False)
class SpeedTable:
    """Recorded speeds, each beside the verdict of its run. A wrong answer has none.

    Args:
        runs: from `results.recorded`, of one machine.
        metrics: of them, beside the median latency of a decode step.
        relative_to: variant whose speeds are 1; by default they stand in their units.
    """

    runs: Sequence[Run]
    metrics: Sequence[str] = ()
    relative_to: str | None = None

    @property
    def header(self) -> list[str]:
        return ["variant", "verdict", *(name.replace("_", " ") for name in ("step_ms", *self.metrics))]

    def rows(self) -> list[list[str]]:
        """One row of cells for each run."""
        base = next((run for run in self.runs if run.variant == self.relative_to), None)
        return [[run.variant, run.verdict, *self._speeds(run, base)] for run in self.runs]

    def _speeds(self, run: Run, base: Run | None) -> list[str]:
        if run.latency_ms is None:
            return ["none"] * (1 + len(self.metrics))
        values, bases = self._values(run), self._values(base) if base else None
        return (
            [f"{value / one:.2f}x" for value, one in zip(values, bases, strict=True)]
            if bases
            else [f"{value:.3g}" for value in values]
        )

    def _values(self, run: Run) -> list[float]:
        step_ms = run.latency_ms.median if run.latency_ms else float("nan")
        return [step_ms, *(run.metrics[name] for name in self.metrics)]

    @property
    def _note(self) -> str:
        note = f"recorded: {self.runs[0].provenance.label}" if self.runs[0].provenance else ""
        return f"{note}; relative to {self.relative_to}" if self.relative_to else note

    def __repr__(self) -> str:
        return f"{aligned([self.header, *self.rows()])}\n{self._note}"

    def _repr_html_(self) -> str:
        return plain_html([self.header, *self.rows()], self._note)


@dataclass(frozen=True, repr=False)
class FindingTable:
    """What audits found first, a row for each: no addresses, and no word about the executor.

    The first finding is the cause. A report itself says more, and not the same on every machine.
    """

    reports: Sequence[AuditReport]

    def rows(self) -> list[list[str]]:
        """A header, then a row for each audit."""
        return [["step", "finding", "subject", "line", "where"], *map(self._row, self.reports)]

    @staticmethod
    def _row(report: AuditReport) -> list[str]:
        if not report.findings:
            return [report.step, "nothing", "", "", ""]
        first = report.findings[0]
        place = [first.where.source, str(first.where)] if first.where else ["", ""]
        return [report.step, first.kind, first.subject, *place]

    def __repr__(self) -> str:
        return aligned(self.rows())

    def _repr_html_(self) -> str:
        return plain_html(self.rows(), "the first finding of each audit")


@dataclass(frozen=True, repr=False)
class HistoryTable:
    """What releases showed of bugs, a word for each.

    Args:
        cells: from `upstream.history`.
        note: where they come from.
    """

    cells: Sequence[Observed]
    note: str

    def rows(self) -> list[list[str]]:
        """The releases, then one row of words for each bug; empty where nothing was probed."""
        releases = list(dict.fromkeys(cell.release for cell in self.cells))
        words = {(cell.line, cell.release): cell.word for cell in self.cells}
        lines = list(dict.fromkeys(cell.line for cell in self.cells))
        body = [[line, *(words.get((line, release), "") for release in releases)] for line in lines]
        return [["bug", *releases], *body]

    def __repr__(self) -> str:
        return f"{aligned(self.rows())}\n{self.note}"

    def _repr_html_(self) -> str:
        return plain_html(self.rows(), self.note)


class ObservationTable(HistoryTable):
    """The same cells, one below the other, with what was seen behind each word."""

    def rows(self) -> list[list[str]]:
        """One row for each cell, those of a bug together."""
        lines = list(dict.fromkeys(cell.line for cell in self.cells))
        cells = sorted(self.cells, key=lambda cell: lines.index(cell.line))
        body = [[cell.release, cell.line, cell.word, cell.observation] for cell in cells]
        return [["release", "bug", "shows", "observed"], *body]


@dataclass(frozen=True, repr=False)
class VerdictTable:
    """Runs side by side, with any of their metrics as further columns.

    Args:
        recorded: the runs come from a file, and the table has to say so.
    """

    runs: Sequence[Run]
    metrics: Sequence[str] = ()
    recorded: bool = False

    @property
    def header(self) -> list[str]:
        fixed = ["variant", "role", "verdict", "as stated", "error", "eager work"]
        return fixed + [name.replace("_", " ") for name in (*self._varying, *self.metrics)]

    @property
    def _varying(self) -> list[str]:
        """What was chosen differently for these runs."""
        first = self.runs[0].shape
        return [name for name in first if any(run.shape.get(name) != first[name] for run in self.runs)]

    def rows(self) -> list[list[str]]:
        """One row of cells for each run."""
        return [
            [
                run.variant,
                run.role or "yours",
                run.verdict,
                as_stated(run),
                error_band(run),
                eager_band(run),
                *(str(run.shape.get(name, "none")) for name in self._varying),
                *(f"{run.metrics[m]:g}" if m in run.metrics else "none" for m in self.metrics),
            ]
            for run in self.runs
        ]

    def __repr__(self) -> str:
        failures = [line for run in self.runs for line in failure(run)]
        return "\n".join([aligned([self.header, *self.rows()]), *failures, self._note])

    @property
    def _note(self) -> str:
        return rung_line(self.runs[0], recorded=self.recorded)

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{html.escape(cell)}</th>" for cell in self.header)
        body = "".join(self._html_row(run, row) for run, row in zip(self.runs, self.rows(), strict=True))
        return _html_table(head, body, self._note, "".join(map(failure_html, self.runs)))

    def _html_row(self, run: Run, row: list[str]) -> str:
        variant, role, *rest = row
        cells = [f"<td>{html.escape(name)}</td>" for name in (variant, role)] + [*map(looks.cell, rest)]
        return f'<tr data-verdict="{run.verdict}">{"".join(cells)}</tr>'
