"""Draws `one_step.svg`, the README's picture, from a run: python docs/one_step.py"""

from pathlib import Path

import torch

from mrv2lab.audit import timeline
from mrv2lab.graphs import device_of
from mrv2lab.plots import Plot
from mrv2lab.timeline import plot


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


if __name__ == "__main__":
    print(picture().alt)
    Path(__file__).with_suffix(".svg").write_text(picture().svg())
