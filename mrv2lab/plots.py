"""Figures: functions from runs to `Figure`. They do not measure, save or print."""

import textwrap
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import comb, isfinite
from statistics import median
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

from mrv2lab import looks, prose
from mrv2lab.bench import Bench, exponent
from mrv2lab.looks import PALETTE
from mrv2lab.results import Latency, Role, Run
from mrv2lab.svg import svg
from mrv2lab.tables import bench_line
from mrv2lab.timed import Row, Timed
from mrv2lab.verdict import TOLERANCE

_TOLD = prose.beside(__file__)
# By role; of a function of the reader's own, which has none, and of a mystery, by None.
COLOURS: dict[str | None, str] = {role or None: PALETTE[name] for role, name in _TOLD["colours"].items()}
_MARKERS: dict[str | None, str] = {role or None: mark for role, mark in _TOLD["marks"].items()}
FILLED, HOLLOW = 4.0, 7.5  # sizes of marks, in points: a small hollow one looks filled
_HOLLOW: dict[str, Any] = {"ms": HOLLOW, "mfc": "white", "mew": 1.6, "ls": ""}  # not right, or not replayed
_DASHES = ("-", "--", ":", "-.")  # variants of one role, in the order in which they come
_ZERO = 1e-8  # a logarithmic axis has no zero: what is right to the last bit has a row of its own below this
_ROW = 10**-0.6  # from one to the next
_CERTAIN = 0.1  # what is wrong is off by more than this, and not only by more than the tolerance
_ON_WHITE: dict[str, Any] = {"ha": "center", "va": "center", "bbox": {"fc": "white", "ec": "none", "pad": 1}}

End = tuple[float | None, str, dict[str, Any]]
"""Where a series ends, None without points; its name, with what is said of it; and its style."""


@dataclass(frozen=True, repr=False)
class Plot:
    """A figure for a notebook: a picture for the eyes, and words that never change for everything else."""

    figure: Figure
    alt: str

    def __repr__(self) -> str:
        return self.alt

    def _ipython_display_(self) -> None:
        looks.show(self.svg(), self.alt)

    def svg(self) -> str:
        return svg(self.figure, self.alt)


def _new_figure(title: str, source: str, num_labels: int = 0, columns: int = 1) -> tuple[Figure, list[Axes]]:
    # No wider, so that its words can still be read on a phone, 390 pixels wide.
    figure = Figure(figsize=(5.8, max(3.5, 1.4 + 0.4 * num_labels)), layout="constrained")
    figure.suptitle(title, fontsize=11, x=0.01, ha="left")
    figure.supxlabel(textwrap.fill(source, 84), fontsize=9, x=0.01, ha="left", color=PALETTE["grey"])
    row = figure.subplots(1, columns, squeeze=False)[0]
    for axes in row:
        axes.spines[["top", "right"]].set_visible(False)
    return figure, list(row)


def _source(runs: Sequence[Run], recorded: bool) -> str:
    """Where the numbers come from, in one line."""
    if not runs:
        return "no runs"
    provenance = runs[0].provenance
    how, where = ("recorded", "label") if recorded else ("run for this page", "machine")
    return f"{how}, rung {runs[0].rung}: {getattr(provenance, where, 'unknown machine')}"


def _dashes(runs: Sequence[Run]) -> dict[str, str]:
    """A line style for each variant, so that those of one role are told apart as well."""
    roles = {run.variant: run.role for run in runs}
    of_role = {role: [name for name in roles if roles[name] == role] for role in roles.values()}
    return {name: _DASHES[of_role[role].index(name) % len(_DASHES)] for name, role in roles.items()}


def _style(role: Role | None) -> dict[str, Any]:
    known = role if role in COLOURS else None
    return {"color": COLOURS[known], "marker": _MARKERS[known], "ms": FILLED}


def _beside(i: int, count: int) -> float:
    """How far marks of one of several series stand beside the middle, so that none hides another."""
    return 0.5 * (i - (count - 1) / 2) / count


def _name(axes: Axes, ends: Sequence[End]) -> None:
    """Names in place of a legend, each with its mark: where a series ends, or below, without points."""
    to_share = axes.transData + axes.transAxes.inverted()
    left = axes.get_xlim()[0]  # on a logarithmic axis there is no 0
    ideal = [-1.0 if end is None else float(to_share.transform((left, end))[1]) for end, _, _ in ends]
    upwards = sorted(range(len(ends)), key=lambda i: ideal[i])
    gap = min(0.17, 1 / max(1, len(ends) - 1))
    heights, at = {}, -gap
    for i in upwards:
        heights[i] = at = max(ideal[i], at + gap)
    at = 1 + gap
    for i in reversed(upwards):  # and down again from the top, where there was no room
        heights[i] = at = min(heights[i], at - gap)
    for i, (end, name, style) in enumerate(ends):
        across, up = ([1.04], [heights[i]]) if end is None else ([1.0, 1.04], [ideal[i], heights[i]])
        axes.plot(across, up, markevery=[-1], lw=0.8, transform=axes.transAxes, clip_on=False, **style)
        axes.text(1.07, heights[i], name, transform=axes.transAxes, va="center")


def _on_error_axis(axes: Axes, errors: Sequence[Sequence[float]]) -> list[list[float]]:
    """Where errors stand on a logarithmic axis, zeros in a row for each series.

    Between what is right and what is wrong lies a band, and a reader should see that it is empty. The rows
    lie in a strip of their own: how high a row is says nothing.
    """
    rows = [_ZERO * _ROW**i for i in range(max(1, len(errors)))]
    top = min(1e9, max([2.0, *(2 * error for series in errors for error in series if isfinite(error))]))
    axes.set_yscale("log")
    bottom, border = rows[-1] * _ROW, rows[0] / _ROW
    axes.set_ylim(bottom, top)
    axes.axhspan(bottom, border, color=PALETTE["grey"], alpha=0.07, lw=0)
    axes.axhline(border, color=PALETTE["grey"], lw=0.8)
    axes.axhspan(TOLERANCE, _CERTAIN, color=PALETTE["grey"], alpha=0.15, lw=0)
    if not any(TOLERANCE < max(series, default=0) <= _CERTAIN for series in errors):
        words = "below the band: right; above: wrong (largest error)"
        axes.set_title(words, fontsize=9, loc="left")  # within the axes it would hide marks
    marked = {
        (bottom * border) ** 0.5: "exactly 0\n(all rows)" if rows[1:] else "exactly 0",
        1e-6: "1e-6",
        TOLERANCE: "0.001",
        _CERTAIN: "0.1",
        1: "1",
    }
    axes.set_yticks(list(marked), list(marked.values()))
    axes.yaxis.get_major_ticks()[0].tick1line.set_visible(False)  # it would point at one row
    axes.yaxis.set_minor_locator(NullLocator())
    axes.set_ylabel("relative error")
    placed = zip(rows, errors, strict=False)
    return [[min(error, top) if error > _ZERO else row for error in series] for row, series in placed]


def errors_per_step(runs: Sequence[Run], *, recorded: bool = False) -> Plot:
    """Error of the logits against the eager reference, step by step; hollow marks are steps run eagerly."""
    title, dashes, ends = "How far the logits are from the eager reference", _dashes(runs), []
    figure, (axes,) = _new_figure(title, _source(runs, recorded), len(runs))
    placed = _on_error_axis(axes, [run.errors for run in runs])
    for i, (run, errors) in enumerate(zip(runs, placed, strict=False)):
        style = _style(run.role)
        steps = [step + _beside(i, len(runs)) for step in range(len(errors))]
        axes.plot(steps, errors, dashes[run.variant], color=style["color"], lw=1, alpha=0.5)
        for mode, mark in (("graph", style), ("eager", style | _HOLLOW)):
            at = [step for step in range(len(errors)) if run.step_modes[step] == mode]
            above = {"ls": "", "zorder": 2 + (run.verdict != "correct")}  # no right mark hides a wrong one
            axes.plot([steps[j] for j in at], [errors[j] for j in at], **mark | above)
        ends.append((errors[-1] if errors else None, f"{run.variant}\n{run.verdict}", style))
    axes.set_xlabel("step (small and filled: a graph was replayed; large and hollow: run eagerly)")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if not any(run.errors for run in runs):
        axes.set_xticks([])
        axes.text(0.5, 0.3, "no step was finished", transform=axes.transAxes, ha="center")
    _name(axes, ends)
    names = ", ".join(f"{run.variant} {run.verdict}" for run in runs)
    return Plot(figure, f"Line plot: relative error of the logits in each step, for {names}.")


def latency(runs: Sequence[Run], *, recorded: bool = False) -> Plot:
    """Median latency of a decode step over batch sizes, with a bar from 20 to 80 %; two sizes make no line.

    Runs with a wrong answer have no latency, and it is said beside their names.
    """
    runs = [run for run in runs if "batch_size" in run.shape]
    dashes, ends = _dashes(runs), []
    figure, (axes,) = _new_figure("Latency of one decode step", _source(runs, recorded), len(dashes))
    sizes = sorted({run.shape["batch_size"] for run in runs})
    for i, (variant, line) in enumerate(dashes.items()):
        mine = sorted((r for r in runs if r.variant == variant), key=lambda r: r.shape["batch_size"])
        timed = [(r.shape["batch_size"], r.latency_ms) for r in mine if r.latency_ms is not None]
        style = _style(mine[0].role)
        across = [sizes.index(size) + _beside(i, len(dashes)) / 2 for size, _ in timed]
        _draw_bands(axes, across, [t for _, t in timed], style | {"ls": line if len(timed) > 2 else ""})
        last = timed[-1][1].median if timed else None
        speed = f"{last:.2g} ms at {timed[-1][0]}" if timed else f"{mine[0].verdict}, so no speed"
        ends.append((last, f"{variant}\n{speed}", style))
    axes.set(xlabel="requests in the batch (mark: median; bar: 20 to 80 %)", ylabel="ms per step")
    axes.set_xticks(range(len(sizes)), [str(size) for size in sizes])
    axes.set(ylim=(0, None), xlim=(-0.5, max(1, len(sizes)) - 0.5))
    _name(axes, ends)
    told = "Line plot: latency of a decode step over batch sizes, for each variant with a right answer."
    return Plot(figure, told)


def errors_by_length(series: dict[str, dict[str, float]], rung: str) -> Plot:
    """For each set of lengths the error of each variant, of `cases.flashmla_lazy_init.errors_by_length`."""
    figure, (axes,) = _new_figure("The same graph at other lengths", f"run for this page, rung {rung}")
    roles: tuple[Role | None, ...] = ("buggy", "fixed", None, "workaround")
    names, ends = list(next(iter(series.values()))), []
    placed = _on_error_axis(axes, [list(errors.values()) for errors in series.values()])
    for i, (variant, errors) in enumerate(zip(series, placed, strict=True)):
        style = _style(roles[i % len(roles)])
        axes.plot([at + _beside(i, len(series)) / 2 for at in range(len(names))], errors, ls="", **style)
        ends.append((errors[-1], variant, style))
    axes.set_xticks(range(len(names)), [textwrap.fill(name, 9) for name in names])
    axes.set_xlabel("lengths of the requests when the graph is replayed")
    _name(axes, ends)
    return Plot(figure, f"Marks: relative error for {', '.join(names)}; variants {', '.join(series)}.")


def flake_rates(thresholds: Sequence[int], total: int = 100) -> Plot:
    """How often a test fails that wants so many of its answers in total to be equal, by how likely each is.

    Each answer is equal or not by itself, so the number of equal ones follows the binomial distribution. The
    thresholds are the least numbers with which a test passes.
    """
    figure, (axes,) = _new_figure("How often such a test fails", "computed: binomial distribution")
    chances = [1 - i / 200 for i in range(61)]  # 1.00 down to 0.70
    for i, (threshold, style) in enumerate(zip(thresholds, _DASHES, strict=False)):
        too_few = range(threshold)
        fails = [sum(comb(total, n) * p**n * (1 - p) ** (total - n) for n in too_few) for p in chances]
        axes.plot(chances, fails, style, color=PALETTE["black"])
        at = min(range(61), key=lambda j: abs(fails[j] - 0.9 + 0.22 * i))  # lines lie close, names must not
        axes.text(chances[at], fails[at], str(threshold), **_ON_WHITE)
    axes.set(xlabel="chance of one answer to be equal", ylabel="share of runs that fail", ylim=(-0.03, 1.03))
    axes.text(1.02, 0.5, f"on each line:\nof {total}, so many\nare to be equal", transform=axes.transAxes)
    return Plot(figure, f"Lines: share of runs that fail, for thresholds {', '.join(map(str, thresholds))}.")


def capture_costs(runs: Sequence[Run], *, recorded: bool = False) -> Plot:
    """Graphs replayed in one decode step, and on a GPU what their capture took; one bar for each variant.

    A figure that no run has, as time and memory on the emulator, gets no panel.
    """
    of_variant = {run.variant: run for run in reversed(runs)}
    shown = [name for name in _TOLD["capture_costs"] if any(name in run.metrics for run in runs)]
    title, columns = "What piecewise graphs are made of", max(1, len(shown))
    figure, row = _new_figure(title, _source(runs, recorded), columns=columns)
    colours = [COLOURS[run.role] for run in of_variant.values()]
    for axes, name in zip(row, shown, strict=False):
        unit = 2**20 if name == "pool_bytes" else 1
        made = [run.metrics.get(name) for run in of_variant.values()]
        drawn = axes.barh(list(of_variant), [(n or 0) / unit for n in made], color=colours, height=0.6)
        axes.bar_label(drawn, ["none" if n is None else f"{n / unit:,.0f}" for n in made], padding=4)
        axes.margins(x=0.35)
        axes.set_xlabel(textwrap.fill(_TOLD["capture_costs"][name], 15))
        axes.set_xticks([])
    for axes in row[1:]:
        axes.set_yticklabels([])
    alt = "Bars: graphs in a decode step of each variant and, measured on a GPU, time and memory of capture."
    return Plot(figure, alt)


def growing(bench: Bench) -> Plot:
    """Times over nodes, both logarithmic: median, a bar from 20 to 80 %, and how each grows in the end.

    What is not right is a hollow mark: no line goes through it, and it has no part in how a time grows.
    """
    series, styles = bench.series(), _TOLD["growing"]
    chains = list(dict.fromkeys(chain for chain, _ in series))
    over = "runs of a sweep" if bench.what == "sweep" else "nodes of a graph"
    title, source = f"What {over.split()[-1]}s take as they grow", bench_line(bench, recorded=True)
    figure, (axes,) = _new_figure(title, source, len(series))
    axes.set(xscale="log", yscale="log", xlabel=f"{over} (hollow: not right)", ylabel="ms")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(lambda value, _: f"{value:,g}")
        axis.set_minor_locator(NullLocator())
    ends: list[End] = []
    for (chain, name), points in series.items():
        style, line = _style(styles[name]), _DASHES[chains.index(chain)]
        right, hollow = [p for p in points if p.is_right], [p for p in points if not p.is_right]
        timed = [point.ms[name] for point in right]
        _draw_bands(axes, [point.num_nodes for point in right], timed, style | {"ls": line})
        medians = [point.ms[name].median for point in hollow]
        axes.plot([point.num_nodes for point in hollow], medians, **style | _HOLLOW)
        grows = exponent(points, name)
        told = "not right" if not right else "" if grows is None else f"n^{grows:.2f} in the end"
        whose = f"{chain}: {name}" if len(chains) > 1 else name
        ends.append((timed[-1].median if timed else None, f"{whose}\n{told}".rstrip(), style))
    _name(axes, ends)
    words = f"Line plot, both axes logarithmic: milliseconds over {over}"
    return Plot(figure, f"{words}; {_in_words(ends)}.")


def _in_words(ends: Sequence[End]) -> str:
    return ", ".join(name.replace("\n", " ") for _, name, _ in ends)


def _draw_bands(axes: Axes, across: Sequence[float], taken: Sequence[Latency], style: dict[str, Any]) -> None:
    """A line through medians, and a bar from 20 to 80 % at each."""
    reach = [[ms.median - ms.p20 for ms in taken], [ms.p80 - ms.median for ms in taken]]
    axes.errorbar(across, [ms.median for ms in taken], reach, lw=1.2, **style)


def _panels(
    timed: Timed, title: str, names: Sequence[str], label: str, draw: Callable[..., list[End]]
) -> tuple[Figure, list[Axes], list[End]]:
    """Panels of one height: sizes at equal distances across, 4k for 4096; times upwards, logarithmic.

    Args:
        label: of a row, its size.
        draw: of axes, a name and all sizes; the ends of the last panel's series are returned.
    """
    sizes = sorted({int(row.labels[label]) for row in timed.rows})
    told = [f"{size // 1024}k" if size and size % 1024 == 0 else str(size) for size in sizes]
    figure, row = _new_figure(title, bench_line(timed, recorded=True), columns=len(names))
    ends: list[End] = []
    for name, axes in zip(names, row, strict=True):
        axes.set(yscale="log", xlim=(-0.5, len(sizes) - 0.5))
        axes.set_title(name, fontsize=10)
        axes.set_xticks(range(len(sizes)), told)
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:,g}")
        axes.yaxis.set_minor_locator(NullLocator())
        ends = draw(axes, name, sizes)
    low, high = zip(*(axes.get_ylim() for axes in row), strict=True)
    for axes in row:
        axes.set_ylim(min(low), max(high))
    return figure, row, ends


def decode_steps(timed: Timed) -> Plot:
    """A decode step over batches in each mode, and dotted what its kernels take; the times are logarithmic.

    A panel for each number of adapters of which several modes were timed. What is not right is a hollow mark:
    no line goes through it, and it has no kernels and no part in a ratio.
    """
    of_mode: dict[tuple[str, str], list[Row]] = {}
    for row in timed.rows:
        adapters, rank = row.labels["adapters"], row.labels.get("rank")
        panel = f"{adapters} adapters, rank {rank}" if adapters else "no adapters"
        of_mode.setdefault((panel, str(row.labels["mode"])), []).append(row)
    several = [panel for panel, count in Counter(panel for panel, _ in of_mode).items() if count > 1]
    names = list(dict.fromkeys(name for _, name in of_mode))

    def draw(axes: Axes, panel: str, sizes: list[int]) -> list[End]:
        axes.set_xlabel("requests in the batch")
        return [_draw_steps(axes, name, of_mode.get((panel, name), []), sizes) for name in names]

    title = "A decode step, and its kernels alone"
    figure, row_of_axes, ends = _panels(timed, title, several, "batch", draw)
    row_of_axes[0].set_ylabel("ms (hollow: not right)")
    for axes in row_of_axes[1:]:
        axes.set_yticklabels([])
    dotted = {"color": PALETTE["grey"], "marker": "", "ls": ":"}
    _name(row_of_axes[-1], [*ends, (None, "dotted: its\nkernels alone", dotted)])
    words = "Line plot, times logarithmic: milliseconds of a decode step over requests in the batch"
    return Plot(figure, f"{words}, and of its kernels alone; {several[-1]}: {_in_words(ends)}.")


def _draw_steps(axes: Axes, name: str, rows: Sequence[Row], sizes: Sequence[int]) -> End:
    """Draw one mode."""
    style = _style(_TOLD["decode_steps"][name])
    by_batch = sorted(rows, key=lambda row: int(row.labels["batch"]))
    placed = [(sizes.index(int(row.labels["batch"])), row) for row in by_batch]
    right = [(at, row) for at, row in placed if row.verdict == "correct"]
    hollow = [(at, row.ms["step"].median) for at, row in placed if row.verdict != "correct"]
    taken = [row.ms["step"] for _, row in right]
    _draw_bands(axes, [at for at, _ in right], taken, style)
    axes.plot([at for at, _ in hollow], [ms for _, ms in hollow], **style | _HOLLOW)
    alone = [(at, row.ms["kernels"].median) for at, row in right if "kernels" in row.ms]
    axes.plot([at for at, _ in alone], [ms for _, ms in alone], ls=":", color=style["color"], lw=1.2)
    if not right:
        return None, f"{name}\nnot right", style
    ratios = [row.counts["over kernels"] for _, row in right if "over kernels" in row.counts]
    told = f"{ratios[0]:.1f} to {ratios[-1]:.1f} x kernels" if ratios else f"{taken[-1].median:.2g} ms"
    return taken[-1].median, f"{name}\n{told}", style


def lora_kernels(timed: Timed) -> Plot:
    """How many times as long as the fast kernels others take, over tokens: median, least and most.

    Only rows that are right count. The floor is what moving each byte once takes: below one.
    """
    ops = list(dict.fromkeys(str(row.labels["op"]) for row in timed.rows))
    right = [row for row in timed.rows if row.verdict == "correct"]
    ways = [way for way in timed.rows[0].ms if way != "fast"]
    ways += ["floor"] * any("floor us" in row.counts for row in right)

    def draw(axes: Axes, op: str, sizes: list[int]) -> list[End]:
        axes.set_xlabel("tokens")
        axes.axhline(1, color=PALETTE["grey"], lw=0.8)
        of_op = [row for row in right if row.labels["op"] == op]
        return [_draw_factors(axes, way, of_op, sizes) for way in ways]

    figure, row_of_axes, ends = _panels(timed, "LoRA kernels against the fast ones", ops, "tokens", draw)
    row_of_axes[0].set_ylabel("time over that of the fast one")
    _name(row_of_axes[-1], ends)
    words = "Line plot: time over that of the fast kernel, by tokens, logarithmic"
    return Plot(figure, f"{words}; {ops[-1]}: {_in_words(ends)}.")


def _draw_factors(axes: Axes, way: str, rows: Sequence[Row], sizes: Sequence[int]) -> End:
    """Draw one way, at sizes of which a row is right."""
    style = _style(_TOLD["lora_kernels"][way])
    factors: dict[int, list[float]] = {}
    for row in sorted(rows, key=lambda row: int(row.labels["tokens"])):
        ms = row.counts["floor us"] / 1e3 if way == "floor" else row.ms[way].median
        factors.setdefault(sizes.index(int(row.labels["tokens"])), []).append(ms / row.ms["fast"].median)
    if not factors:
        return None, f"{way}\nnot right", style
    middles = [median(of_size) for of_size in factors.values()]
    spread = [(middle - min(f), max(f) - middle) for middle, f in zip(middles, factors.values(), strict=True)]
    bars, line = (None, ":") if way == "floor" else (list(zip(*spread, strict=True)), "-")
    axes.errorbar(list(factors), middles, bars, ls=line, lw=1.2, **style)
    return middles[-1], f"{way}\n{middles[0]:.2g} to {middles[-1]:.2g}", style


OF_TIMED: dict[str, Callable[[Timed], Plot]] = {"runner": decode_steps, "lora": lora_kernels}
"""Of what was timed one way and another, what has a figure."""
