"""Verdicts as a table, in text and in HTML.

Nothing in it moves from run to run or from machine to machine, except the line that names the rung:
notebooks are compared by what their tables print.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf
from statistics import median
from sys import float_info
from typing import Any, TypeVar

from mrv2lab import looks, prose
from mrv2lab.audit import AuditReport
from mrv2lab.bench import Bench, exponent
from mrv2lab.errors import RecordError
from mrv2lab.results import Run
from mrv2lab.timed import SUMMED, Row, Timed
from mrv2lab.upstream.history import Observed
from mrv2lab.verdict import ALLOWED

_HEADINGS: dict[str, str] = prose.beside(__file__)
_NUMBER = re.compile(r"(?:[≤>] )?-?[\d,.]+(?:e[-+]?\d+)?[%×*]?|-|none|no result|")
_TWICE = re.compile(r"^(.+): (?=\1, and not a word$)")


def rung_line(run: Run, *, recorded: bool = False) -> str:
    """What kind of machine stands behind a run, in one line; of a recorded one also versions and date."""
    if recorded and run.provenance:
        return f"rung: {run.rung} (recorded: {run.provenance.label})"
    gpu = run.provenance.gpu if run.provenance else None
    what = gpu or "a model of capture on the CPU: verdicts, no speeds"
    if run.rung == "source" and run.provenance:
        what = f"vllm {run.provenance.vllm}'s own classes on {what}"
    return f"rung: {run.rung} ({what})"


def bench_line(bench: Bench | Timed, *, recorded: bool = False) -> str:
    """Whose times these are, in one line: nobody should take the emulator's for those of a GPU."""
    times = "by the clock, two runs at once" if bench.what == "sweep" else whose(bench.rung)
    return f"recorded, {times}: {bench.provenance.label}" if recorded else times


def whose(rung: str) -> str:
    """What times on a rung are times of."""
    return "CPU time of the emulator, no speed of a GPU" if rung == "emulated" else "times of a GPU"


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
    """An error, so coarse that it reads the same on every machine; that of a wrong step is told as such."""
    return "≤ 0.001" if error <= 1e-3 else "0.001 to 0.1" if error <= 0.1 else "> 0.1"


def failure(run: Run) -> list[str]:
    """What was raised in a run that failed, then its traceback. Nothing of others: their verdict says it."""
    return [f"{run.variant} failed: {_last_words(run)}", *run.log_tail] if run.verdict == "failed" else []


def _last_words(run: Run) -> str:
    """What is known of a failure, once. The last line of a log does not say why a signal came after it."""
    said = _TWICE.sub("", (run.message or "").rstrip(": "))
    if not (by := re.match(r"(SIG[A-Z]+)(: )?", said)):
        return said
    fate = f"ended by {by[1]}" + " (often by the system, for lack of memory)" * (by[1] == "SIGKILL")
    return fate + "; its log says: " * bool(by[2]) + said[by.end() :]


def failure_html(run: Run, is_told: bool = False) -> str:
    """The same, with the traceback closed at first; what was raised is left out where it is told already."""
    return looks.piece("failure", failure(run), is_told)


def heading(name: str) -> str:
    """What stands above a column: words, and the unit."""
    return _HEADINGS.get(name, name.replace("_", " "))


def in_unit(name: str, value: float | None) -> str:
    """A metric in the unit of its heading, no finer than anybody reads it; `none` where a run has none."""
    if value is None:
        return "none"
    value = value / 2**20 if name == "pool_bytes" else value
    if not abs(value) < 1e15:  # infinite, or no number
        return f"{value:.3g}"
    return f"{value:.0f}" if value == round(value) or value >= 100 else f"{value:#.3g}"


def _digits(value: float, number: int) -> str:
    """So many digits, and all before the point: no power of ten, which `g` would write from there on."""
    return f"{value:,.0f}" if 10**number - 0.5 <= abs(value) < 1e15 else f"{value:,.{number}g}"


def _are_numbers(lines: Sequence[Sequence[str]]) -> list[bool]:
    """For each column, whether its cells below the heading are numbers, which belong to the right."""
    columns = (column[1:] for column in zip(*lines, strict=True))
    return [all(map(_NUMBER.fullmatch, cells)) and any(cells) for cells in columns]


def aligned(lines: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    marks = [">" if is_number else "<" for is_number in _are_numbers(lines)]
    rows = [[f"{c:{mark}{w}}" for c, mark, w in zip(line, marks, widths, strict=True)] for line in lines]
    return "\n".join("  ".join(row).rstrip() for row in rows)


def plain_html(
    lines: Sequence[Sequence[str]], note: str, *, below: str = "", names: int = 1,
    code: Sequence[str] = (), verdicts: Sequence[str] = (),
) -> str:  # fmt: skip
    """Cells as HTML: a header, then rows that begin with names, what stands below `code` as code; words of
    verdicts in their colours. Below the table comes HTML, then a note in small print.
    """
    sides = [' align="right"' if is_number else "" for is_number in _are_numbers(lines)]
    return looks.part(looks.piece("table", lines, sides, names, code, verdicts, below, note))


class Table:
    """Rows of cells, the first of them a header, and a line below; in text and in HTML."""

    def rows(self) -> Sequence[Sequence[str]]:
        raise NotImplementedError

    def _below(self) -> str:
        return ""

    def __repr__(self) -> str:
        return f"{aligned(self.rows())}\n{self._below()}".rstrip()

    def _repr_html_(self) -> str:
        return plain_html(self.rows(), self._below())


@dataclass(frozen=True, repr=False)
class Rows(Table):
    """Any rows, the first of them a header."""

    lines: Sequence[Sequence[str]]
    note: str = ""  # stands below

    def rows(self) -> Sequence[Sequence[str]]:
        return self.lines

    def _below(self) -> str:
        return self.note


@dataclass(frozen=True, repr=False)
class CrashTable(Table):
    """Recorded crashes: what was reported, and at which line. Crashes that read alike share a row."""

    runs: Sequence[Run]  # from `results.recorded`; those that did not crash are left out
    by: Sequence[str] = ()  # shape names that get a column

    def rows(self) -> Sequence[Sequence[str]]:
        crashed = (run for run in self.runs if run.verdict == "crash")
        shapes = ((run, (str(run.shape[name]) for name in self.by)) for run in crashed)
        cells = ((run.variant, *shape, run.where or "", run.message or "") for run, shape in shapes)
        titles = map(heading, ("variant", *self.by, "reported_at", "message"))
        return [tuple(titles), *dict.fromkeys(cells)]

    def _below(self) -> str:
        provenance = self.runs[0].provenance if len(self.rows()) > 1 else None
        return f"recorded: {provenance.label}" if provenance else "no crash is recorded"


@dataclass(frozen=True, repr=False)
class SpeedTable(Table):
    """Recorded speeds, each beside the verdict of its run. A wrong answer has none."""

    runs: Sequence[Run]  # from `results.recorded`, of one machine
    metrics: Sequence[str] = ()  # of them, beside the median latency of a decode step
    relative_to: str | None = None  # variant whose speeds are 1; by default they stand in their units

    def rows(self) -> Sequence[Sequence[str]]:
        titles = [heading(name) for name in ("step_ms", *self.metrics)]
        if self.relative_to:  # ratios have no unit
            titles = [title.partition(", ")[0] for title in titles]
        base = next((self._speeds(run) for run in self.runs if run.variant == self.relative_to), {})
        rows = [["variant", "verdict", *titles]]
        for run in self.runs:
            speeds = self._speeds(run).items()
            told = [f"{v / base[name]:.2f}×" if base else in_unit(name, v) for name, v in speeds]
            rows.append([run.variant, run.verdict, *(told or ["none"] * len(titles))])
        return rows

    def _speeds(self, run: Run) -> dict[str, float]:
        if run.latency_ms is None:
            return {}
        return {"step_ms": run.latency_ms.median} | {name: run.metrics[name] for name in self.metrics}

    def _below(self) -> str:
        note = f"recorded: {self.runs[0].provenance.label}" if self.runs[0].provenance else ""
        return f"{note}; relative to {self.relative_to}" if self.relative_to else note


@dataclass(frozen=True, repr=False)
class FindingTable(Table):
    """What audits found first, a row for each: no addresses, and no word about the executor.

    The first finding is the cause. A report itself says more, and not the same on every machine.
    """

    reports: Sequence[AuditReport]

    def rows(self) -> Sequence[Sequence[str]]:
        rows = [["step", "finding", "subject", "line", "where"]]
        for report in self.reports:
            first = next(iter(report.findings), None)
            found = [first.kind, first.subject] if first else ["nothing", ""]
            place = [first.where.source, str(first.where)] if first and first.where else ["", ""]
            rows.append([report.step, *found, *place])
        return rows

    def _repr_html_(self) -> str:
        return plain_html(self.rows(), "the first finding of each audit", code=["subject", "line"])


@dataclass(frozen=True, repr=False)
class HistoryTable(Table):
    """What releases showed of bugs, a word for each."""

    cells: Sequence[Observed]  # from `upstream.history`
    note: str  # where they come from

    def rows(self) -> Sequence[Sequence[str]]:
        releases = list(dict.fromkeys(cell.release for cell in self.cells))
        words = {(cell.line, cell.release): cell.word for cell in self.cells}
        lines = list(dict.fromkeys(cell.line for cell in self.cells))
        body = [[line, *(words.get((line, release), "") for release in releases)] for line in lines]
        return [["bug", *releases], *body]

    def _below(self) -> str:
        return self.note


class ObservationTable(HistoryTable):
    """The same cells, one below the other, with what was seen behind each word."""

    def rows(self) -> Sequence[Sequence[str]]:
        lines = list(dict.fromkeys(cell.line for cell in self.cells))
        cells = sorted(self.cells, key=lambda cell: lines.index(cell.line))
        body = [[cell.release, cell.line, cell.word, cell.observation] for cell in cells]
        rows = [["release", "bug", "shows", "observed"], *body]
        return rows if len(lines) > 1 else [[row[0], *row[2:]] for row in rows]


@dataclass(frozen=True, repr=False)
class VerdictTable(Table):
    """Runs side by side, with any of their metrics as further columns."""

    runs: Sequence[Run]
    metrics: Sequence[str] = ()
    recorded: bool = False  # the runs come from a file, and the table has to say so

    def rows(self) -> Sequence[Sequence[str]]:
        first = self.runs[0].shape
        varying = [name for name in first if any(run.shape.get(name) != first[name] for run in self.runs)]
        further = map(heading, (*varying, *self.metrics))
        rows = [["variant", "role", "verdict", *further, "as stated", "error", "outside graphs"]]
        for run in self.runs:
            seen = (as_stated(run), error_band(run), eager_band(run))
            shape = (str(run.shape.get(name, "none")) for name in varying)
            figures = (in_unit(name, run.metrics.get(name)) for name in self.metrics)
            rows.append([run.variant, run.role or "yours", run.verdict, *shape, *figures, *seen])
        return rows

    def __repr__(self) -> str:
        failures = [line for run in self.runs for line in failure(run)]
        return "\n".join([aligned(self.rows()), *failures, self._below()])

    def _below(self) -> str:
        return rung_line(self.runs[0], recorded=self.recorded)

    def _repr_html_(self) -> str:
        below, verdicts = "".join(map(failure_html, self.runs)), [run.verdict for run in self.runs]
        return plain_html(self.rows(), self._below(), below=below, names=2, verdicts=verdicts)


OfTimes = TypeVar("OfTimes", Bench, Timed)
_ROWS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "engine": (("model", "runner", "mode", "requests"), ("token", "first token", "load")),
    "guard": (("nodes",), ("off", "on", "asked")),
    "lora": (("op", "model", "layer", "tokens"), ("fast", "plain")),
    "runner": (("mode", "batch", "adapters"), ("step",)),
    "server": (("attached", "requests"), ("token",)),
    "sweep": ((), ("run", "asked again")),
}
"""Of what is timed: the labels that a row begins with, and the times that one has that is right."""

_MOST = {"error": 6e-2, "error fast": 2**-8}  # of a right row: `live.loads.TOLERANCE`, bfloat16's rounding


_RATIOS = {"of off", "low", "high", "over kernels"}
"""Counts that only a right row has."""
_NONE = {"findings", "told", "apart", "given up"}
"""Counts of which a right row has none."""


def checked(kept: OfTimes) -> OfTimes:
    """The same. RecordError: these times contradict themselves, as no bench writes them."""
    rows: list[Any] = kept.points if isinstance(kept, Bench) else kept.rows
    known = set[frozenset[Any]]()
    for row in rows:
        labels = row.labels if isinstance(kept, Timed) else {"chain": row.chain, "nodes": row.num_nodes}
        wrong = list(_contradictions(kept, row, rows[0]))
        wrong += ["there are two such rows"] * ((key := frozenset(labels.items())) in known)
        wrong += ["on no GPU"] * (kept.rung in ("cuda", "vllm") and kept.provenance.gpu is None)
        known.add(key)
        if wrong:
            told = ", ".join(f"{name} {value}" for name, value in labels.items())
            raise RecordError(f"times of {kept.what}, {told}, {row.verdict}: {wrong[0]}")
    return kept


def _contradictions(kept: Bench | Timed, row: Any, first: Any) -> Iterator[str]:
    labels, needed = _ROWS.get(kept.what, ((), ("replay",) if isinstance(kept, Bench) else ()))
    is_right = row.verdict in ("correct", "eager")
    alike = first.ms if isinstance(kept, Bench) or kept.what in SUMMED else ()
    yield from (f"without {name} ms" for name in (*needed, *alike) if is_right and name not in row.ms)
    is_untimed = kept.what == "engine" and not is_right
    yield from (f"with {name} ms" for name in needed if is_untimed and name in row.ms)
    yield from (f"{n} ms not between its bounds" for n, t in row.ms.items() if not t.p20 <= t.median <= t.p80)
    if isinstance(row, Row) and tuple(row.labels)[: len(labels)] != labels:
        yield f"its labels do not begin with {', '.join(labels)}"
    if isinstance(row, Row) and not is_right and (ratios := sorted(_RATIOS & row.counts.keys())):
        yield f"with a ratio, {ratios[0]}"
    if isinstance(row, Row) and is_right:
        yield from (f"with {n} {row.counts[n]:g}" for n in sorted(_NONE & row.counts.keys()) if row.counts[n])
    for name, number in row.counts.items() if isinstance(row, Row) else ():
        if number != number or (is_right and not number <= min(_MOST.get(name, inf), float_info.max)):
            yield f"{name} {number:g}"


@dataclass(frozen=True, repr=False)
class BenchTable(Table):
    """What was timed as it grows: medians, the share of a node (of replay and memory) or a run, exponents."""

    bench: Bench
    recorded: bool = False

    def rows(self) -> Sequence[Sequence[str]]:
        series, points = self.bench.series(), self.bench.points
        names = list(dict.fromkeys(name for _, name in series))
        noun = self.bench.noun
        share = "replay" if "replay" in names else names[0]
        heads = ["chain", f"{noun}s", "verdict", *(f"{name} ms" for name in names)]
        rows = [[*heads, f"us a {noun}", f"bytes a {noun}"]]
        for chain in dict.fromkeys(point.chain for point in points):
            for point in (point for point in points if point.chain == chain):
                found = f", {point.num_findings} found" if point.num_findings else ""
                ms = [in_unit(name, point.ms[name].median) for name in names]
                each_us = f"{1e3 * point.ms[share].median / point.num_nodes:.2f}"
                memory = "-" if point.device_bytes is None else f"{point.device_bytes / point.num_nodes:.0f}"
                rows.append([chain, f"{point.num_nodes:,}", point.verdict + found, *ms, each_us, memory])
            powers = (exponent(series[chain, name], name) for name in names)
            grown = ("-" if power is None else f"n^{power:.2f}" for power in powers)
            rows.append([chain, "grows as", "", *grown, "", ""])
        return rows

    def _below(self) -> str:
        return bench_line(self.bench, recorded=self.recorded)


@dataclass(frozen=True, repr=False)
class TimedTable(Table):
    """What was timed one way and another: medians, and what was counted. Of many rows how they compare."""

    timed: Timed
    recorded: bool = False

    def rows(self) -> Sequence[Sequence[str]]:
        by = SUMMED.get(self.timed.what)
        return self._ratios(by) if by else self._all()

    def _ratios(self, by: Sequence[str]) -> Sequence[Sequence[str]]:
        """How many times as long other ways take as the first: least, median, most; of right rows."""
        groups: dict[tuple[str, ...], list[Row]] = {}
        for row in self.timed.rows:
            groups.setdefault(tuple(str(row.labels[name]) for name in by), []).append(row)
        first, *others = self.timed.rows[0].ms
        told = [[*by, "rows", "right", *(f"{way} / {first}" for way in others)]]
        for group, rows in groups.items():
            right = [row for row in rows if row.verdict == "correct"]
            cells = [*group, str(len(rows)), str(len(right))]
            for way in others:
                factors = sorted(row.ms[way].median / row.ms[first].median for row in right)
                spread = [factors[0], median(factors), factors[-1]] if factors else []
                cells.append(" ".join(f"{factor:.2f}" for factor in spread) or "-")
            told.append(cells)
        return told

    def _all(self) -> Sequence[Sequence[str]]:
        rows = self.timed.rows
        labels, ms, counts = (
            list(dict.fromkeys(name for row in rows for name in getattr(row, part)))
            for part in ("labels", "ms", "counts")
        )
        told = [[*labels, "verdict", *(f"{name} ms" for name in ms), *counts]]
        for row in rows:
            medians = {name: _digits(latency.median, 3) for name, latency in row.ms.items()}
            numbers = {name: _digits(number, 4) for name, number in row.counts.items()}
            ways = [str(row.labels.get(name, "-")) for name in labels]
            timed = [medians.get(name, "-") for name in ms]
            told.append([*ways, row.verdict, *timed, *(numbers.get(name, "-") for name in counts)])
        return told

    def _below(self) -> str:
        return bench_line(self.timed, recorded=self.recorded)


@dataclass(frozen=True, repr=False)
class EngineTable(TimedTable):
    """How many times as fast as the eager engine of Model Runner V2, for each load; and for which part of the
    time of a token the device is at work. Only of what is right.
    """

    def rows(self) -> Sequence[Sequence[str]]:
        right = {tuple(row.labels.values()): row for row in self.timed.rows if row.verdict == "correct"}
        loads = list(dict.fromkeys(row.labels["requests"] for row in self.timed.rows))
        told = [["model", "runner", "mode", "what", *map(str, loads)]]
        for model, runner, mode in dict.fromkeys(labels[:3] for labels in right):
            rows = [right.get((model, runner, mode, n)) for n in loads]
            eager = [right.get((model, "V2", "eager", n)) for n in loads]
            labels = [str(model), str(runner), str(mode)]
            for name in ("token", "first token", "load"):
                both = zip(eager, rows, strict=True)
                factors = (a.ms[name].median / b.ms[name].median if a and b else None for a, b in both)
                told.append([*labels, name, *("-" if one is None else f"{one:.2f}x" for one in factors)])
            of_token = (row.ms if row and "kernels" in row.ms else None for row in rows)
            shares = (f"{ms['kernels'].median / ms['token'].median:.0%}" if ms else "-" for ms in of_token)
            told.append([*labels, "at work", *shares])
        return told
