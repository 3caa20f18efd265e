"""Verdicts as a table, in text and in HTML.

Nothing in it moves from run to run or from machine to machine, except the line that names the rung:
notebooks are compared by what their tables print.
"""

import html
from collections.abc import Sequence
from dataclasses import dataclass

from mrv2lab.results import Run

_COLOURS = {"correct": "#0072b2", "wrong": "#d55e00", "crash": "#d55e00", "eager": "#e69f00"}


def rung_line(run: Run) -> str:
    """What kind of machine stands behind a run, in one line."""
    gpu = run.provenance.gpu if run.provenance else None
    what = gpu or "a model of capture on the CPU: verdicts, no speeds"
    if run.rung == "source" and run.provenance:
        what = f"vllm {run.provenance.vllm}'s own classes on {what}"
    return f"rung: {run.rung} ({what})"


def error_band(run: Run) -> str:
    """The largest error, as coarse as a verdict needs it."""
    if not run.errors:
        return "no result"
    for bound in (1e-3, 1e-1):
        if run.max_error <= bound:
            return f"≤ {bound:g}"
    return "> 0.1"


def _aligned(lines: Sequence[Sequence[str]]) -> str:
    """Cells as text, in columns."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


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
        return f"{_aligned([self.header, *self.rows()])}\n{self._source}"

    def _repr_html_(self) -> str:
        lines = [self.header, *self.rows()]
        body = "".join(
            "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in line) + "</tr>" for line in lines
        )
        return f"<table>{body}</table><p><small>{html.escape(self._source)}</small></p>"


@dataclass(frozen=True, repr=False)
class VerdictTable:
    """Runs side by side, with any of their metrics as further columns."""

    runs: Sequence[Run]
    metrics: Sequence[str] = ()

    @property
    def header(self) -> list[str]:
        fixed = ["variant", "role", "verdict", "as expected", "error"]
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
                "yes" if run.as_expected else f"NO, should be {run.expected}",
                error_band(run),
                *(str(run.shape.get(name, "none")) for name in self._varying),
                *(f"{run.metrics[m]:g}" if m in run.metrics else "none" for m in self.metrics),
            ]
            for run in self.runs
        ]

    def __repr__(self) -> str:
        return f"{_aligned([self.header, *self.rows()])}\n{rung_line(self.runs[0])}"

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{html.escape(cell)}</th>" for cell in self.header)
        body = "".join(self._html_row(run, row) for run, row in zip(self.runs, self.rows(), strict=True))
        note = html.escape(rung_line(self.runs[0]))
        return (
            f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table><p><small>{note}</small></p>"
        )

    def _html_row(self, run: Run, row: list[str]) -> str:
        cells = [f"<td>{html.escape(cell)}</td>" for cell in row]
        cells[2] = f'<td><b style="color:{_COLOURS[run.verdict]}">{run.verdict}</b></td>'
        return f'<tr data-verdict="{run.verdict}">{"".join(cells)}</tr>'
