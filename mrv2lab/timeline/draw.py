"""The picture of timelines: four lanes for each run, one axis for all of them."""

import textwrap
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Rectangle
from matplotlib.typing import ColorType

from mrv2lab.audit import Place
from mrv2lab.audit.atoms import MISSING
from mrv2lab.audit.timelines import Timeline
from mrv2lab.looks import PALETTE
from mrv2lab.plots import COLOURS, Plot
from mrv2lab.timeline.columns import Lanes, Moment, Slot, lanes
from mrv2lab.timeline.words import alt, value_text

INK = PALETTE["grey"]
_LINE = (PALETTE["grey"], 0.5)  # with its opacity
# Across in inches, down in lanes of 0.36 inches.
_WIDTH = 9.6  # of the figure, at most
_LEAST = 6.6  # right of the margin, for what stands below
_MARGIN = 1.45  # left of the first column, for the names of lanes
_GAP = 0.2  # between phases
_NEW_INPUTS = 0.95
_MOST = 0.9  # width of a column
_LANE = 0.36
_BOX = 0.66  # height
_DASHED = (0, (2, 2))  # work that is not there
_CHARACTER = 0.08
_KEY = (0.07, 0.35, 4.6)  # columns of what stands below, from the left
_RUN = 5.1  # height of a run
_PYTHON, _HOST, _GRAPH, _DEVICE = (0.8 + i for i in range(4))  # below the top of a run


def plot(timelines: Sequence[Timeline]) -> Plot:
    """Runs one above the other, over one axis of warm-up, capture, new inputs and replay."""
    found = lanes(timelines)
    return Plot(Picture(found).figure, alt(found))


class Picture:
    """The figure of `plot`, and where its columns are."""

    def __init__(self, found: Lanes):
        self.found = found
        self.spans = _spans(found)  # for each column, where it begins and ends, in data coordinates
        self.height = _RUN * len(found.timelines)  # of all runs, in data coordinates
        self.names = _names(found, self.spans)
        key = _key(found, self.names)
        right, bottom = max(_LEAST, self.spans[-1][1] + 0.07), self.height + 0.6 * len(key) + 0.6
        self.figure = Figure(figsize=(_MARGIN + right, _LANE * (bottom + 0.9)))
        self.axes: Axes = self.figure.add_axes((0, 0, 1, 1))
        self.axes.set_axis_off()
        self.axes.set(xlim=(-_MARGIN, right), ylim=(bottom, -0.9))
        for phase in dict.fromkeys(column.phase for column in found.columns):
            self._phase(phase)
        for run in range(len(found.timelines)):
            self._run(run)
        for i, line in enumerate(key):
            for across, words in zip(_KEY, line, strict=False):
                self._text(-_MARGIN + across, self.height + 0.6 + 0.6 * i, words, fontsize=8.5)

    def _text(self, x: float, y: float, text: str, **style: object) -> None:
        self.axes.text(x, y, text, **{"va": "center", "color": INK, **style})  # type: ignore[arg-type]

    def _phase(self, phase: str) -> None:
        left, right = self._extent(phase)
        self._text((left + right) / 2, -0.45, phase, ha="center", fontsize=9, weight="bold")
        if left:
            self.axes.plot([left - _GAP / 2] * 2, [-0.7, self.height], color=_LINE, lw=0.8, ls=(0, (1, 2)))

    def cursor(self) -> tuple[list[tuple[float, ...]], dict[str, Any]]:
        """What a cursor covers, in points: of each column; and of each run, below its title."""
        lane, runs = 72 * _LANE, range(len(self.found.timelines))
        tops = [round(lane * (0.9 + _RUN * run + _PYTHON), 1) for run in runs]
        edges = ((_MARGIN + left - 0.02, _MARGIN + right + 0.02) for left, right in self.spans)
        across = [tuple(round(72 * edge, 1) for edge in pair) for pair in edges]
        return across, {"tops": tops, "height": round(lane * (_DEVICE + 0.95 - _PYTHON), 1)}

    def _extent(self, phase: str) -> tuple[float, float]:
        columns = self.found.of_phase(phase)
        return self.spans[columns[0]][0], self.spans[columns[-1]][1]

    # ---- a run ----

    def _run(self, run: int) -> None:
        timeline, top = self.found.timelines[run], _RUN * run
        title = f"{timeline.name}  ({timeline.role})" if timeline.role else timeline.name
        self._text(-_MARGIN + 0.07, top + 0.35, title, fontsize=10, weight="bold", color=self._colour(run))
        host = "host value"
        if frozen := self.found.frozen:
            last = textwrap.shorten(frozen.subject.rpartition(".")[2], 26)
            host = f"{'address of' if frozen.is_address else host}\n{last}"
        names = ("Python", host, "graph", "device")
        for lane, name in zip((_PYTHON, _HOST, _GRAPH, _DEVICE), names, strict=True):
            self.axes.plot([-_MARGIN + 0.07, self.spans[-1][1]], [top + lane + 0.95] * 2, color=_LINE, lw=0.4)
            self._text(-_MARGIN + 0.07, top + lane + 0.45, name, fontsize=7.5)
        for column in range(len(self.found.columns)):
            self._column(run, column)
        self._say_nothing(run)
        self._frozen(run)

    def _colour(self, run: int) -> str:
        role = self.found.timelines[run].role
        if role in (None, "baseline"):  # a step of the reader's own, or one without a graph
            return COLOURS["buggy"] if self.found.timelines[run].frozen else INK
        return COLOURS[role]

    def _column(self, run: int, column: int) -> None:
        moment, slot = self.found.at(run, column), self.found.columns[column].slot
        top = _RUN * run
        is_known = slot is None or moment.python  # in a replay nobody looks at it
        if moment.value is not MISSING and is_known:
            text = value_text(moment.value, self.found.frozen, short=True)
            x = self.spans[column][0] + 0.06
            self._text(x, top + _HOST + 0.47, text, fontsize=8.5, family="monospace")
        if slot is None:
            return
        for lane, count in ((_PYTHON, moment.python), (_GRAPH, moment.graph), (_DEVICE, moment.device)):
            if count:
                self._box(run, column, top + lane, count, moment)
            elif moment.missing and lane != _PYTHON:
                name = self.names.get(slot, f"+{moment.missing}")
                self._frame(column, top + lane, name, color=self._colour(run), ls=_DASHED)

    def _box(self, run: int, column: int, y: float, count: int, moment: Moment) -> None:
        """A filled box for what has a name, a hollow one for what is counted; below it what lacks of that."""
        slot, colour = self.found.columns[column].slot, self._colour(run)
        assert slot is not None
        if slot.sort == "rest":
            lacks = moment.missing if y != _RUN * run + _PYTHON else 0
            height = _BOX / 2 if lacks else _BOX
            self._frame(column, y, f"…{count}", color=_LINE, ls="-", ink=INK, lw=0.7, height=height)
            if lacks:
                self._frame(column, y + height + 0.04, f"+{lacks}", color=colour, ls=_DASHED, height=height)
            return
        is_repaired = slot in self.found.goes_wrong() and self.found.timelines[run].role == "fixed"
        face = colour if is_repaired else INK
        is_stale = moment.is_stale and y != _RUN * run + _PYTHON
        edge, lw = (colour, 2.4) if is_stale else (face, 1.0)
        text = self.names[slot] + "*" * is_stale
        self._frame(column, y, text, color=edge, ls="-", face=face, ink="white", lw=lw)

    def _frame(
        self, column: int, y: float, text: str, *, color: ColorType, ls: object, face: str = "none",
        ink: str | None = None, lw: float = 1.4, height: float = _BOX,
    ) -> None:  # fmt: skip
        left, right = self.spans[column]
        style = {"facecolor": face, "edgecolor": color, "linewidth": lw, "linestyle": ls}
        box = Rectangle((left + 0.03, y + 0.14), right - left - 0.06, height, **style)  # type: ignore[arg-type]
        self.axes.add_patch(box)
        weight = "bold" if face != "none" else "normal"
        size = 7.2 if text[0] in "…+" else 8.5
        middle = (left + right) / 2, y + 0.15 + height / 2
        self._text(*middle, text, ha="center", fontsize=size, color=ink or color, weight=weight)

    def _say_nothing(self, run: int) -> None:
        """An empty lane is what matters most: say that it is empty on purpose."""
        found, top = self.found, _RUN * run
        is_captured = bool(found.timelines[run].phases["capture"])
        runs = any(found.at(run, i).device for i in found.of_phase("capture"))
        asks = any(found.at(run, i).python for i in found.of_phase("replay"))
        for is_empty, phase, lane, text in (
            (not is_captured, "capture", _GRAPH, "nothing is captured"),
            (is_captured and not runs, "capture", _DEVICE, "nothing runs"),
            (is_captured and not asks, "replay", _PYTHON, "no Python runs"),
        ):
            middle = sum(self._extent(phase)) / 2
            if is_empty:
                self._text(middle, top + lane + 0.48, text, ha="center", fontsize=8, style="italic")

    def _frozen(self, run: int) -> None:
        """A frame round the value that was read at capture, and a rail from there into the replay."""
        found, colour, y = self.found, self._colour(run), _RUN * run + _HOST
        at = next((i for i in found.of_phase("capture") if found.at(run, i).is_frozen), None)
        frozen = found.timelines[run].frozen
        if at is None or frozen is None:
            return
        old, new = (value_text(value, frozen, short=True) for value in (frozen.old, frozen.new))
        left, width = self.spans[at][0], _CHARACTER * len(old) + 0.12
        frame = Rectangle((left, y + 0.14), width, 0.66, facecolor="none", edgecolor=colour, linewidth=2.2)
        self.axes.add_patch(frame)
        begin, end = self._extent("replay")
        text = f"frozen: {old}, now: {new}"
        if _CHARACTER * len(text) > end - begin:
            text = f"frozen: {old}"
        self._text((begin + end) / 2, y + 0.45, text, ha="center", fontsize=8.5, weight="bold", color=colour)
        wrong = [i for i in found.of_phase("replay") if found.at(run, i).missing or found.at(run, i).is_stale]
        tips = [sum(self.spans[i]) / 2 for i in wrong] or [end]
        rail = [(left + width, y + 0.8), (left + width, y + 0.87), (tips[-1], y + 0.87)]
        self.axes.plot(*zip(*rail, strict=True), color=colour, lw=2.2, solid_joinstyle="miter")
        for tip in tips:
            ends = (tip, y + 0.87), (tip, y + 1.16)
            arrow = FancyArrowPatch(*ends, arrowstyle="-|>", mutation_scale=9, color=colour, lw=1.6)
            self.axes.add_patch(arrow)


def _names(found: Lanes, spans: Sequence[tuple[float, float]]) -> dict[Slot, str]:
    """What stands in boxes: names, if there is room for all of them, else letters."""
    room = min(right - left for (left, right), c in zip(spans, found.columns, strict=True) if c.slot) - 0.12
    names = {slot: slot.name.removeprefix("aten.") for slot in found.work()}
    if any(_CHARACTER * len(name) > room for name in names.values()):
        names = {slot: chr(ord("A") + i) for i, slot in enumerate(names)}
    return names | {c.slot: "?" for c in found.columns if c.slot and c.slot.sort == "read"}


def _spans(found: Lanes) -> list[tuple[float, float]]:
    num_slots = sum(column.slot is not None for column in found.columns)
    width = min(_MOST, (_WIDTH - _MARGIN - _NEW_INPUTS - 3 * _GAP - 0.1) / num_slots)
    spans, x, phase = [], 0.0, found.columns[0].phase
    for column in found.columns:
        if column.phase != phase:
            x, phase = x + _GAP, column.phase
        right = x + (width if column.slot else _NEW_INPUTS)
        spans.append((x, right))
        x = right
    return spans


def _key(found: Lanes, names: dict[Slot, str]) -> list[tuple[str, ...]]:
    """What names and marks stand for, and where the picture comes from: lines of up to three cells."""
    lines: list[tuple[str, ...]] = []
    if found.frozen is not None and not found.frozen.is_address:
        lines.append(("?", textwrap.shorten(found.frozen.place.source, 56), _at(found.frozen.place)))
    for slot in found.work():  # a name in a box needs no letter
        lines.append((names[slot] if len(names[slot]) == 1 else "", slot.name, _at(slot.place)))
    if any(column.slot and column.slot.sort == "rest" for column in found.columns):
        lines.append(("…n", "n other pieces of work"))
    if any(moment.missing for moment in found.moments.values()):
        lines.append(("- -", "an eager step runs it, and the graph does not hold it"))
    if any(moment.is_stale for moment in found.moments.values()):
        lines.append(("*", "runs, as the frozen value says"))
    backend = found.timelines[0].backend
    model = ", a model of capture on the CPU" if backend == "emulated" else ""
    return [*lines, (f"run for this page, rung {backend}{model}",)]


def _at(place: Place | None) -> str:
    return str(place).rpartition("/")[2].partition(" in ")[0] if place else ""
