"""Figures: functions from runs to `Figure`. They do not measure, save or print."""

import io
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from math import comb, isfinite

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from PIL import Image

from mrv2lab import looks
from mrv2lab.audit.cost import Cost
from mrv2lab.looks import PALETTE
from mrv2lab.results import Run

# One colour and one mark for one role, so that nobody depends on the colour.
COLOURS = {
    "baseline": PALETTE["black"],
    "buggy": PALETTE["vermilion"],
    "tempting": PALETTE["wine"],
    "workaround": PALETTE["purple"],
    "fixed": PALETTE["blue"],
    None: PALETTE["green"],
}
_MARKERS = {"baseline": "s", "buggy": "X", "tempting": "P", "workaround": "D", "fixed": "o", None: "^"}
_DASHES = ("-", "--", ":", "-.")  # variants of one role, in the order in which they come


@dataclass(frozen=True, repr=False)
class Plot:
    """A figure for a notebook: a picture for the eyes, and words that never change for everything else."""

    figure: Figure
    alt: str

    def __repr__(self) -> str:
        return self.alt

    def _ipython_display_(self) -> None:
        looks.show(self.png(), self.alt)

    def html(self) -> str:
        """The picture with its alternative text, as a part of a page or of a panel."""
        return looks.picture(self.png(), self.alt)

    def png(self) -> bytes:
        """The picture as a PNG file, on white: readable on any page, and dark where `looks` has its say."""
        buffer, small = io.BytesIO(), io.BytesIO()
        self.figure.savefig(buffer, format="png", dpi=110)
        # A plot has few colours, so a third of the bytes is enough, and notebooks store them.
        Image.open(buffer).convert("RGB").quantize(128).save(small, format="png", optimize=True)
        return small.getvalue()


def _new_figure(title: str, source: str) -> tuple[Figure, Axes]:
    figure, (axes,) = _new_row(title, source, 1)
    return figure, axes


def _new_row(title: str, source: str, columns: int) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(8.4, 3.4), layout="constrained")
    figure.suptitle(title, fontsize=11, x=0.01, ha="left")
    caption = textwrap.fill(source, 130)
    figure.supxlabel(caption, fontsize=8, x=0.01, ha="left", color=PALETTE["grey"])
    row = figure.subplots(1, columns, squeeze=False)[0]
    for axes in row:
        axes.spines[["top", "right"]].set_visible(False)
    return figure, list(row)


def _source(runs: Sequence[Run], recorded: bool) -> str:
    """Where the numbers come from, in one line."""
    if not runs:
        return "no runs"
    provenance = runs[0].provenance
    how, where = ("recorded", "label") if recorded else ("run here", "machine")
    return f"{how}, rung {runs[0].rung}: {getattr(provenance, where, 'unknown machine')}"


def _dashes(runs: Sequence[Run]) -> dict[str, str]:
    """A line style for each variant, so that those of one role are told apart as well."""
    roles = {run.variant: run.role for run in runs}
    of_role = {role: [name for name in roles if roles[name] == role] for role in roles.values()}
    return {name: _DASHES[of_role[role].index(name) % len(_DASHES)] for name, role in roles.items()}


def _legend_beside(axes: Axes) -> None:
    if not axes.get_legend_handles_labels()[0]:
        return  # nothing was drawn, and matplotlib would warn
    axes.legend(frameon=False, fontsize=9, handlelength=3.2, loc="center left", bbox_to_anchor=(1, 0.5))


def errors_per_step(runs: Sequence[Run], *, recorded: bool = False) -> Plot:
    """Error of the logits against the eager reference, step by step; hollow marks are steps run eagerly."""
    figure, axes = _new_figure("How far the logits are from the eager reference", _source(runs, recorded))
    dashes = _dashes(runs)
    for run in runs:  # one that crashed has no steps; the legend still names it
        steps, colour, marker = range(len(run.errors)), COLOURS[run.role], _MARKERS[run.role]
        style = dashes[run.variant]
        axes.plot(steps, run.errors, style, color=colour, lw=1.2)
        for mode, face in (("graph", colour), ("eager", "white")):
            at = [i for i in steps if run.step_modes[i] == mode]
            size = 9 if run.role == "baseline" else 6  # what lies under another mark must still be seen
            axes.plot(at, [run.errors[i] for i in at], marker, mfc=face, mec=colour, ms=size)
        axes.plot([], [], style, color=colour, marker=marker, label=f"{run.variant}: {run.verdict}")
    axes.set(xlabel="step (filled: a graph was replayed; hollow: run eagerly)", ylabel="relative error")
    # A scale of its own would blow rounding up to the size of a bug.
    axes.set_ylim(
        -0.03, max([0.7, *(error * 1.05 for run in runs for error in run.errors if isfinite(error))])
    )
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if not any(run.errors for run in runs):
        axes.set_xticks([])
        axes.text(0.5, 0.5, "no step was finished", transform=axes.transAxes, ha="center")
    _legend_beside(axes)
    names = ", ".join(f"{run.variant} {run.verdict}" for run in runs)
    return Plot(figure, f"Line plot: relative error of the logits in each step, for {names}.")


def latency(runs: Sequence[Run], *, recorded: bool = False) -> Plot:
    """Median latency of a decode step over batch sizes, with a band from 20 to 80 %.

    Runs with a wrong answer have no latency, and the legend says so.
    """
    figure, axes = _new_figure("Latency of one decode step", _source(runs, recorded))
    for variant, style in _dashes(runs).items():
        mine = sorted((r for r in runs if r.variant == variant), key=lambda r: r.shape["batch_size"])
        timed = [(r.shape["batch_size"], r.latency_ms) for r in mine if r.latency_ms is not None]
        colour, marker = COLOURS[mine[0].role], _MARKERS[mine[0].role]
        label = variant if timed else f"{variant}: {mine[0].verdict}, so no speed"
        sizes = [size for size, _ in timed]
        axes.plot(sizes, [t.median for _, t in timed], style, color=colour, marker=marker, label=label)
        low, high = [t.p20 for _, t in timed], [t.p80 for _, t in timed]
        axes.fill_between(sizes, low, high, color=colour, alpha=0.25, lw=0)
    axes.set(xlabel="requests in the batch", ylabel="ms (median, 20 to 80 %)")
    axes.set_xticks(sorted({run.shape["batch_size"] for run in runs}))
    axes.set_ylim(bottom=0)
    _legend_beside(axes)
    alt = "Line plot: latency of a decode step over batch sizes, for each variant with a right answer."
    return Plot(figure, alt)


def errors_by_length(series: dict[str, dict[str, float]], rung: str) -> Plot:
    """Bars: for each set of lengths, the relative error of each variant.

    Args:
        series: variant to lengths to error, as from `cases.flashmla_lazy_init.errors_by_length`.
        rung: where they were made, for the caption.
    """
    figure, axes = _new_figure("The same graph at other lengths", f"run here, rung {rung}")
    palette = [PALETTE[name] for name in ("vermilion", "blue", "green", "purple")]
    width = 0.8 / len(series)
    for i, (variant, errors) in enumerate(series.items()):
        at = [position + i * width for position in range(len(errors))]
        axes.bar(at, list(errors.values()), width, color=palette[i % 4], label=variant)
    names = list(next(iter(series.values())))
    axes.set_xticks([position + 0.4 - width / 2 for position in range(len(names))], names)
    axes.set(ylabel="relative error", xlabel="lengths of the requests when the graph is replayed")
    _legend_beside(axes)
    return Plot(figure, f"Bars: relative error for {', '.join(names)}; variants {', '.join(series)}.")


def flake_rates(thresholds: Sequence[int], total: int = 100) -> Plot:
    """How often a test fails that wants so many of its answers to be equal, by how likely each of them is.

    Each answer is equal or not by itself, so the number of equal ones follows the binomial distribution.

    Args:
        thresholds: least numbers of equal answers with which a test passes.
        total: answers in one run of the test.
    """
    figure, axes = _new_figure("How often such a test fails", "computed: binomial distribution")
    chances = [1 - i / 200 for i in range(61)]  # 1.00 down to 0.70
    for threshold, style in zip(thresholds, _DASHES, strict=False):
        fails = [
            sum(comb(total, n) * p**n * (1 - p) ** (total - n) for n in range(threshold)) for p in chances
        ]
        axes.plot(chances, fails, style, color=PALETTE["black"], label=f"at least {threshold} of {total}")
    axes.set(xlabel="chance of one answer to be equal", ylabel="share of runs that fail", ylim=(-0.03, 1.03))
    _legend_beside(axes)
    return Plot(figure, f"Lines: share of runs that fail, for thresholds {', '.join(map(str, thresholds))}.")


_CAPTURE_COSTS = {
    "segments_per_step": "graphs in a decode step",
    "capture_ms": "capture of all sizes (ms)",
    "pool_bytes": "memory of the graphs (bytes)",
}


def capture_costs(runs: Sequence[Run], *, recorded: bool = False) -> Plot:
    """Graphs replayed in one decode step, and on a GPU what their capture took; one bar for each variant.

    A figure that no run has, as time and memory on the emulator, gets no panel.
    """
    by_variant = {run.variant: run for run in reversed(runs)}
    shown = [name for name in _CAPTURE_COSTS if any(name in run.metrics for run in runs)]
    title, source = "What piecewise graphs are made of", _source(runs, recorded)
    figure, row = _new_row(title, source, max(1, len(shown)))
    variants = list(by_variant)[::-1]
    for axes, name in zip(row, shown, strict=False):
        mine = [by_variant[variant] for variant in variants]
        bars = [run.metrics.get(name, 0.0) for run in mine]
        drawn = axes.barh(variants, bars, color=[COLOURS[run.role] for run in mine], height=0.6)
        texts = [f"{run.metrics[name]:,.0f}" if name in run.metrics else "none" for run in mine]
        axes.bar_label(drawn, texts, padding=4)
        axes.margins(x=0.35)
        axes.invert_yaxis()
        axes.set_xlabel(_CAPTURE_COSTS[name])
        axes.set_xticks([])
    for axes in row[1:]:
        axes.set_yticklabels([])
    alt = "Bars: graphs in a decode step of each variant and, measured on a GPU, time and memory of capture."
    return Plot(figure, alt)


def audit_costs(costs: Sequence[Cost], source: str) -> Plot:
    """Time of an audit over the size of the graph, beside what five times one capture and two replays take.

    Args:
        costs: one for each size, of one executor.
        source: where they were measured, for the caption.
    """
    figure, axes = _new_figure("What an audit costs", source)
    sizes = [cost.num_nodes for cost in costs]
    unit = [cost.capture_s + cost.replays_s for cost in costs]
    axes.plot(sizes, [5 * s for s in unit], color=COLOURS["baseline"], ls="--", label="five times that")
    axes.plot(sizes, [cost.audit_s for cost in costs], color=COLOURS["fixed"], marker="o", label="one audit")
    label = "one capture and two replays"
    axes.plot(sizes, unit, color=COLOURS["baseline"], marker="s", label=label)
    axes.set(xlabel="nodes of the graph", ylabel="seconds", ylim=(0, None), xlim=(0, None))
    _legend_beside(axes)
    return Plot(figure, "Line plot: seconds for an audit, and for one capture and two replays, over nodes.")
