"""Draws `one_step.svg`, the README's picture, from a run: python docs/one_step.py"""

from pathlib import Path

import matplotlib
import torch

from mrv2lab.audit import timeline
from mrv2lab.graphs import device_of
from mrv2lab.plots import Plot
from mrv2lab.timeline import plot

FILE = Path(__file__).with_suffix(".svg")


def picture() -> Plot:
    """A step that asks the host whether its batch has an adapter."""
    x, batch = torch.ones(4, device=device_of("emulated")), {"has_adapter": False}

    def step() -> torch.Tensor:
        y = x + 1
        return y * 2 if batch["has_adapter"] else y

    with_adapter = timeline(
        step, vary=lambda: batch.update(has_adapter=True), backend="emulated", role="buggy"
    )
    return plot([with_adapter])


def write() -> str:
    """Write the picture; returns its alternative text."""
    drawn = picture()
    with matplotlib.rc_context(
        {"svg.fonttype": "none", "svg.hashsalt": "mrv2lab", "font.family": "sans-serif"}
    ):
        drawn.figure.savefig(FILE, metadata={"Date": None, "Creator": None}, facecolor="white")
    FILE.write_text(FILE.read_text().replace("<text ", '<text xml:space="preserve" '))  # columns of words
    return drawn.alt


if __name__ == "__main__":
    print(write())
