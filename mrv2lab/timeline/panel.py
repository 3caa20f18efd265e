"""Step through the picture in the browser: a cursor over it, and below it what happens there in words."""

import html
import json
from collections.abc import Sequence
from pathlib import Path

from mrv2lab import looks
from mrv2lab.audit.atoms import MISSING
from mrv2lab.audit.timelines import Timeline
from mrv2lab.plots import Plot
from mrv2lab.timeline.columns import Lanes, Slot, lanes
from mrv2lab.timeline.draw import Picture
from mrv2lab.timeline.words import alt, sentence, value_text

_STEPS = Path(__file__).with_name("steps.js")


class TimelinePanel:
    """The picture of timelines, the buggy one first, to be stepped through: with buttons, with arrow keys on
    the slider, by clicks on moments. No kernel has to answer. Where no script runs, on GitHub, the picture
    stands alone.
    """

    def __init__(self, timelines: Sequence[Timeline]):
        self.lanes = lanes(timelines)
        self._picture = Picture(self.lanes)
        self.plot = Plot(self._picture.figure, alt(self.lanes))

    def __repr__(self) -> str:
        return self.plot.alt

    def _ipython_display_(self) -> None:
        looks.show(self.plot.svg(), self.plot.alt, f"({looks.on_one_line(_STEPS)})({self.steps()})")

    def steps(self) -> str:
        """As JSON: each moment that is worth a stop, with its words, and what the cursor covers in points."""
        found, (across, down) = self.lanes, self._picture.cursor()
        stops = [i for i, column in enumerate(found.columns) if not self._is_idle(i, column.slot)]
        moments = [(*across[i], found.columns[i].phase, _runs(found, i)) for i in stops]
        return json.dumps({**down, "moments": moments, "margin": across[0][0]}).replace("</", "<\\/")

    def _is_idle(self, column: int, slot: Slot | None) -> bool:
        """No run does anything, and none leaves out a read that Python would make."""
        moments = (self.lanes.at(run, column) for run in range(len(self.lanes.timelines)))
        return slot is not None and slot.sort != "read" and all(moment.is_empty for moment in moments)


def _runs(found: Lanes, column: int) -> list[dict[str, str]]:
    """For each run what happens, at which line, the host value, and what its graph holds, as HTML."""
    value = "address" if found.frozen and found.frozen.is_address else "host value"
    return [
        {
            "name": html.escape(timeline.name),
            "happens": html.escape(sentence(found, run, column)),
            "line": _line(found, run, column),
            value: f"<code>{html.escape(_last_value(found, run, column))}</code>",
            "in the graph": _nodes(found, run, column),
        }
        for run, timeline in enumerate(found.timelines)
    ]


def _line(found: Lanes, run: int, column: int) -> str:
    slot, place = found.columns[column].slot, found.at(run, column).place
    if slot is None or slot.sort == "rest" or place is None:
        return "-"
    return f"<code>{html.escape(place.source)}</code> ({html.escape(str(place))})"


def _last_value(found: Lanes, run: int, column: int) -> str:
    """What the host value was when Python last looked at it; what a graph goes by is in the sentence."""
    moments = [(found.columns[i], found.at(run, i)) for i in range(column + 1)]
    known = [m.value for where, m in moments if m.value is not MISSING and (where.slot is None or m.python)]
    return value_text(known[-1], found.frozen) if known else "-"


def _nodes(found: Lanes, run: int, column: int) -> str:
    nodes = found.nodes_until(run, column)
    others = nodes.pop("", 0)
    named = [f"<code>{html.escape(name)}</code>" for name in nodes]
    return ", ".join([*named, *([f"{others} other"] if others else [])]) or "nothing"
