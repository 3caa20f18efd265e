"""Step through the picture: a band over it, and beside it what happens there in words."""

import html
from collections.abc import Sequence
from threading import RLock
from typing import Any

import ipywidgets as ipw
from IPython.display import display

from mrv2lab import looks
from mrv2lab.audit.timelines import Timeline
from mrv2lab.plots import Plot
from mrv2lab.timeline.columns import Lanes, lanes
from mrv2lab.timeline.draw import Picture
from mrv2lab.timeline.words import alt, sentence, value_text


class TimelinePanel(ipw.VBox):
    """The picture of timelines, to be stepped through with buttons, or with the arrow keys on the slider.

    Where no kernel answers, in an exported page, the picture stands in for the panel.

    Args:
        timelines: of one run or of several, the buggy one first.
    """

    def __init__(self, timelines: Sequence[Timeline]):
        self.lanes = lanes(timelines)
        self.alt = alt(self.lanes)
        self._picture = Picture(self.lanes)
        self.static = self._plot().png()
        self._frames: dict[int, str] = {}
        self._drawing = RLock()  # JupyterLab may answer two clicks in two threads
        self.columns = [i for i in range(len(self.lanes.columns)) if _is_worth_a_stop(self.lanes, i)]
        self.back, self.forward = ipw.Button(description="◀ back"), ipw.Button(description="forward ▶")
        self.slider = ipw.IntSlider(min=1, max=len(self.columns), description="moment")
        self.picture, self.words = (ipw.HTML(layout=ipw.Layout(max_width="100%")) for _ in range(2))
        self.back.on_click(lambda _: self._move(-1))
        self.forward.on_click(lambda _: self._move(1))
        self.slider.observe(self._show, names="value")
        self.add_class("mrv2lab").add_class("mrv2lab-timeline")
        controls = ipw.HBox([self.back, self.slider, self.forward], layout=ipw.Layout(flex_flow="row wrap"))
        left = ipw.Layout(align_items="flex-start")  # else the picture is blown up to the page's width
        super().__init__([controls, self.words, self.picture], layout=left)
        self._show()

    def __repr__(self) -> str:
        return f"TimelinePanel. {self.alt}"

    def _move(self, by: int) -> None:
        self.slider.value += by  # the slider keeps it within its ends

    def _show(self, _change: Any = None) -> None:
        with self._drawing:  # so that who comes last shows what the slider says last
            column = self.columns[self.slider.value - 1]
            self.back.disabled = self.slider.value == self.slider.min
            self.forward.disabled = self.slider.value == self.slider.max
            self.picture.value = self._frame(column)
            self.words.value = words_html(self.lanes, column)

    def _frame(self, column: int) -> str:
        with self._drawing:
            if column not in self._frames:
                self._picture.point_at(column)
                self._frames[column] = looks.part(self._plot().html())
            return self._frames[column]

    def _plot(self) -> Plot:
        return Plot(self._picture.figure, self.alt)

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        bundle = super()._repr_mimebundle_(**kwargs)  # ipywidgets cuts a long repr short
        note = looks.part("<p>Buttons, in JupyterLab. They step through this picture:</p>")
        return {**bundle, "text/plain": repr(self), "text/html": note}

    def _ipython_display_(self) -> None:
        display(self._repr_mimebundle_(), raw=True)
        looks.show(self.static, self.alt)


def _is_worth_a_stop(found: Lanes, column: int) -> bool:
    """A moment at which some run does something, or leaves out a read that Python would make."""
    slot = found.columns[column].slot
    runs = range(len(found.timelines))
    return slot is None or slot.sort == "read" or not all(found.at(run, column).is_empty for run in runs)


def words_html(found: Lanes, column: int) -> str:
    """A row for each run: the line, what happens, the host value, and what its graph holds by then."""
    phase = found.columns[column].phase
    rows = "".join(_row(found, run, column) for run in range(len(found.timelines)))
    value = "address" if found.frozen and found.frozen.is_address else "host value"
    names = ("run", "line", "what happens", value, "nodes in the graph")
    titles = "".join(f"<th>{name}</th>" for name in names)
    return looks.part(f'<b data-phase="{phase}">{phase}</b><table><tr>{titles}</tr>{rows}</table>')


def _row(found: Lanes, run: int, column: int) -> str:
    cells = [
        f"<b>{html.escape(found.timelines[run].name)}</b>",
        _line(found, run, column),
        html.escape(sentence(found, run, column)),
        f"<code>{html.escape(_last_value(found, run, column))}</code>",
        _nodes(found, run, column),
    ]
    return "<tr>" + "".join(f'<td class="long">{cell}</td>' for cell in cells) + "</tr>"


def _line(found: Lanes, run: int, column: int) -> str:
    slot, place = found.columns[column].slot, found.at(run, column).place
    if slot is None or slot.sort == "rest" or place is None:
        return "-"
    return f"<code>{html.escape(place.source)}</code><br><small>{html.escape(str(place))}</small>"


def _last_value(found: Lanes, run: int, column: int) -> str:
    """What the host value was when Python last looked at it; what a graph goes by is in the sentence."""
    moments = [(found.columns[i], found.at(run, i)) for i in range(column + 1)]
    known = [m.value for where, m in moments if m.value is not None and (where.slot is None or m.python)]
    return value_text(known[-1], found.frozen) if known else "-"


def _nodes(found: Lanes, run: int, column: int) -> str:
    nodes = found.nodes_until(run, column)
    others = nodes.pop("", 0)
    named = [f"<code>{html.escape(name)}</code>" for name in nodes]
    return ", ".join([*named, *([f"{others} other"] if others else [])]) or "none"
