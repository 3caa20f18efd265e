"""Verdicts and plots as one HTML file that needs no network."""

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from jinja2 import Environment

from mrv2lab import looks, plots, results
from mrv2lab.bench import Bench
from mrv2lab.results import Record, Run, recorded
from mrv2lab.tables import BenchTable, TimedTable, VerdictTable, heading, in_unit, plain_html
from mrv2lab.timed import Timed
from mrv2lab.upstream.releases import TARGET

_SOURCE = Path(__file__).with_suffix(".html").read_text("utf-8")
_PAGE = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(_SOURCE)


def write(
    path: Path,
    runs: Sequence[Run],
    records: Sequence[Record] = (),
    benches: Sequence[Bench] = (),
    ways: Sequence[Timed] = (),
) -> None:
    """Write the report; the file's folder is made. Runs of this process come first and are called live, then
    results files as recorded, by default those kept for the cases of `runs`; last times of growing graphs,
    and what was timed one way and another. A case that was run alike in several files has one section.
    """
    sections = [_section(of_case, "run here, now") for of_case in _by_case(runs)]
    own = (recorded(r[0].case, "cuda") for r in _by_case(runs))
    sections += [_section(of_case, "recorded") for of_case in _alike([r.runs for r in records] or own)]
    sections += [*map(_measured_once, benches), *map(_measured_once, ways)]
    ground, ink = (looks.DARK[looks.PALETTE[name]] for name in ("white", "black"))
    page = _PAGE.render(sections=sections, stylesheet=looks.stylesheet(), ground=ground, ink=ink)
    results.write(path, page)


def write_figures(
    folder: Path, records: Sequence[Record], benches: Sequence[Bench] = (), ways: Sequence[Timed] = ()
) -> list[Path]:
    paths = []
    timed: list[Bench | Timed] = [*benches, *ways]
    for kept in timed:
        kind = "bench" if isinstance(kept, Bench) else "timed"
        for plot in _drawn(kept):
            paths.append(folder / f"{kind}-{kept.what}-{kept.rung}.svg")
            results.write(paths[-1], plot.svg())
    for runs in _alike([record.runs for record in records]):
        for name, plot in _plots(runs, is_recorded=True).items():
            first, other = runs[0], _release(runs[0]).strip().replace(TARGET, "")
            stem = "-".join(filter(None, (first.case, first.rung, other, name)))
            stem = re.sub(r"[^\w.-]", "_", stem)  # a record is no reason to write elsewhere
            paths.append(folder / f"{stem}.svg")
            results.write(paths[-1], plot.svg())
    return paths


def _plots(runs: Sequence[Run], is_recorded: bool) -> dict[str, plots.Plot]:
    """Errors for the first shape, and latencies over batch sizes where something was timed at some."""
    first = [run for run in runs if run.shape == runs[0].shape]
    shown = {"errors": plots.errors_per_step(first, recorded=is_recorded)}
    if any(run.latency_ms and "batch_size" in run.shape for run in runs):
        shown["latency"] = plots.latency(runs, recorded=is_recorded)
    return shown


def _by_case(runs: Sequence[Run]) -> list[list[Run]]:
    return [[r for r in runs if r.case == name] for name in dict.fromkeys(r.case for r in runs)]


def _alike(kept: Iterable[Sequence[Run]]) -> list[list[Run]]:
    """Runs of a case that were made alike, in one file or in several."""
    found: dict[object, list[Run]] = {}
    for of_case in (one for runs in kept for one in _by_case(runs)):
        made = of_case[0].provenance
        key = of_case[0].case, of_case[0].rung, made and (made.label, made.command)
        found.setdefault(key, []).extend(of_case)
    return [*found.values()]


def _of_first(runs: Sequence[Run]) -> str:
    """The shape of the first, where there are several."""
    shape = runs[0].shape
    told = ", ".join(f"{heading(name)} {value}" for name, value in shape.items())
    return f"errors: {told}" if any(run.shape != shape for run in runs) else ""


def _measured(runs: Sequence[Run]) -> Iterator[str]:
    """A table for each shape: a row for each number, for there are many, a column for each variant."""
    for shape in ([*pairs] for pairs in dict.fromkeys(tuple(run.shape.items()) for run in runs)):
        of_shape = [run for run in runs if [*run.shape.items()] == shape]
        rows = [
            [heading(name), *(in_unit(name, run.metrics.get(name)) for run in of_shape)]
            for name in sorted({name for run in of_shape for name in run.metrics})
        ]
        names = ["", *(run.variant for run in of_shape)]
        yield plain_html([names, *rows], ", ".join(f"{heading(name)}: {value}" for name, value in shape))


def _section(runs: list[Run], how: str) -> dict[str, object]:
    runs = sorted(runs, key=lambda run: [*run.shape.values()])
    is_recorded, made = how == "recorded", runs[0].provenance
    return {
        "title": f"{runs[0].case}: {how}, rung {runs[0].rung}{_release(runs[0])}",
        "table": looks.bare(VerdictTable(runs, recorded=is_recorded)._repr_html_()),
        "measured": [looks.bare(table) for table in _measured(runs)],
        "plots": [plot.svg() for plot in _plots(runs, is_recorded).values()],
        "caption": _of_first(runs),
        "provenance": f"{made.label}. Command: {made.command}. Commit: {made.commit}" if made else "",
    }


def _release(run: Run) -> str:
    """Of the engine, where one was asked."""
    return f" {run.provenance.vllm}" if run.rung == "vllm" and run.provenance else ""


def _drawn(kept: Bench | Timed) -> list[plots.Plot]:
    if isinstance(kept, Bench):
        return [plots.growing(kept)]
    return [plots.OF_TIMED[kept.what](kept)] if kept.what in plots.OF_TIMED else []


def _measured_once(kept: Bench | Timed) -> dict[str, object]:
    made = kept.provenance
    table = BenchTable(kept, recorded=True) if isinstance(kept, Bench) else TimedTable(kept, recorded=True)
    return {
        "title": f"bench {kept.what}: recorded, rung {kept.rung}"
        + (", cut off before its end" if made.seconds is None else ""),
        "table": looks.bare(table._repr_html_()),
        "plots": [plot.svg() for plot in _drawn(kept)],
        "provenance": f"{made.label}. Command: {made.command}. Commit: {made.commit}",
    }
