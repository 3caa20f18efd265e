"""A session may hold several CUDA graphs, told apart by an id. Before an id is captured it has to run a
few times, so that memory is there and nothing is set up inside of a capture. The runs were counted for all
ids together: from the second id on the first run of it is captured at once. Repaired by counting for each
id. What goes wrong is not told; here an operator tunes itself at its first run of a shape, and waits.
"""

from collections import Counter
from types import SimpleNamespace

import torch

from mrv2lab.graphs import capture

PROJECT = "ONNX Runtime"
LINK = "https://github.com/microsoft/onnxruntime/pull/19856"
MECHANISM = "incomplete-key"
CAUSE = "self.run_count"
LINE = "count_id = graph_id if self.fixed else 0"
EXECUTORS = ("emulated", "cuda")

MIN_RUNS, ROWS = 2, 8


class Session:
    """Runs by id of a graph, which here is the number of rows."""

    def __init__(self, fixed: bool, device: torch.device):
        self.fixed, self.graph_id = fixed, 2
        self.backend = "cuda" if device.type == "cuda" else "emulated"
        self.inputs = torch.ones(ROWS, device=device)
        self.run_count, self.graphs, self.tactics = Counter(), {}, {}

    def compute(self, rows: int) -> torch.Tensor:
        inputs = self.inputs[:rows]
        if rows not in self.tactics:
            self.tactics[rows] = bool((inputs * 0 + rows).sum().item() > 8)  # measures, and waits
        return inputs.flip(0).cumsum(0) if self.tactics[rows] else inputs.flip(0).cumsum(0) + 0

    def run(self) -> torch.Tensor:
        graph_id = self.graph_id
        if graph_id not in self.graphs:
            count_id = graph_id if self.fixed else 0
            self.run_count[count_id] += 1
            if self.run_count[count_id] <= MIN_RUNS:
                return self.compute(graph_id)
            self.graphs[graph_id] = capture(lambda: self.compute(graph_id), backend=self.backend)
        self.graphs[graph_id].replay()
        return self.graphs[graph_id].outputs


def program(fixed: bool, device: torch.device) -> SimpleNamespace:
    session = Session(fixed, device)
    ids = iter((2, 2, 2, 4, 4, 4, 2, 4) * 2)

    def vary() -> None:
        session.graph_id = next(ids)
        session.inputs.add_(torch.arange(1.0, ROWS + 1, device=device))

    return SimpleNamespace(
        step=session.run,
        eager=lambda: session.compute(session.graph_id),
        own_graphs=True,
        vary=vary,
        requests=8,
        session=session,
    )
