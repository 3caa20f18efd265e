"""What vLLM's own worker processes do for us, where an engine has several: vLLM imports this in each.

At import, which is before the model is loaded: take a fix out, watch graphs, draw weights that matter.
"""

import os
from contextlib import nullcontext
from typing import Any

from mrv2lab.live.engine import Graphs, Watcher
from mrv2lab.live.models import use_spread_weights
from mrv2lab.live.pp import EDITS
from mrv2lab.live.releases import installed
from mrv2lab.live.work import Meter
from mrv2lab.upstream.probes import get
from mrv2lab.upstream.unfix import unfix

GRAPHS = Graphs()
GRAPHS.watch()
use_spread_weights()
named = os.environ.get(EDITS, "").split()
# Kept, and never left: once the context is collected, the fixes are back.
UNFIXED = (
    unfix(*get(named[0]).variants[named[1]].edits, versions=f"=={installed()}") if named else nullcontext()
)
UNFIXED.__enter__()


class Extension:
    """Methods that `collective_rpc` can call on every worker."""

    model_runner: Any

    def start_watching(self, num_reqs: int, eager: bool, count: bool, mode: str, sizes: list[int]) -> None:
        """Watch this rank; with `count`, also what the graphs do that were asked for."""
        self.watcher = Watcher(self.model_runner, GRAPHS, num_reqs, every=64)
        self.watcher.start(eager=eager, drafts=count)
        self.meter = Meter(self.model_runner, GRAPHS.telling, mode, sizes) if count else None
        if self.meter is not None:
            self.meter.__enter__()

    def stop_watching(self) -> tuple[list[Any], list[int], list[float], int, list[Any]]:
        """What was seen: logits as arrays (none before the last rank), replays, times, graphs captured, and
        of each step that was counted its work and whether it fits a graph."""
        if self.meter is not None:
            self.meter.__exit__(None, None, None)
        served = self.watcher.stop()
        logits = [kept.numpy() for kept in served.logits]
        counted = [(step.work, step.fits) for step in self.meter.steps] if self.meter else []
        return logits, served.replays, served.step_ms, len(GRAPHS.made), counted
