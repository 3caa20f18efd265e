"""One picture for the whole family: Python, host value, graph and device over capture and replay.

plot(case.timelines("zero_mapping", "forced_launch"))
TimelinePanel(case.timelines("zero_mapping", "forced_launch"))     # the same, to be stepped through

Each is drawn from runs that were made for it; `audit.timeline` makes one of any step.
"""

from mrv2lab.timeline.columns import lanes
from mrv2lab.timeline.draw import plot
from mrv2lab.timeline.panel import TimelinePanel
from mrv2lab.timeline.words import sentence

__all__ = ["TimelinePanel", "lanes", "plot", "sentence"]
