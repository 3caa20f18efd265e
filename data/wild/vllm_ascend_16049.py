"""Decoding was 7.5 times slower as soon as a server was full. Graphs are captured for 1, 2, 4 and multiples
of 8 up to a ceiling, and a larger batch runs eagerly. Elsewhere the ceiling is twice the largest batch, so
that some size of the grid lies above it; here the factor was dropped to save memory. With a largest batch off
the grid, as 12, the last size is 8, and batches of 9 to 12 have no graph. Repaired here as an open pull
request (#16623) does it: the ceiling itself becomes a size.
"""

from itertools import cycle
from types import SimpleNamespace

import torch

from mrv2lab.graphs import capture, new_pool

PROJECT = "vLLM Ascend"
LINK = "https://github.com/vllm-project/vllm-ascend/issues/16049"
MECHANISM = "silent-eager"
CAUSE = "sizes"
LINE = "sizes = [size for size in GRID if size <= self.max_capture_size]"
EXECUTORS = ("emulated", "cuda")
SYMPTOM = "speed"

GRID = (1, 2, 4, *range(8, 65, 8))
MAX_NUM_SEQS, DECODE_QUERY_LEN, HIDDEN = 12, 1, 4


class CompilationConfig:
    """Which batches of decoding get a graph."""

    def __init__(self, fixed: bool, max_num_seqs: int):
        self.fixed, self.max_capture_size = fixed, max_num_seqs * DECODE_QUERY_LEN

    def capture_sizes(self) -> list[int]:
        sizes = [size for size in GRID if size <= self.max_capture_size]
        return sorted({*sizes, self.max_capture_size}) if self.fixed else sizes


class NPUModelRunner:
    """Replays the smallest graph that a batch fits into."""

    def __init__(self, config: CompilationConfig, device: torch.device):
        self.num_reqs, backend = 1, "cuda" if device.type == "cuda" else "emulated"
        weights = torch.randn(2, HIDDEN, HIDDEN, generator=torch.Generator().manual_seed(0))
        self.up, self.down = weights.to(device)
        self.hidden = torch.ones(MAX_NUM_SEQS, HIDDEN, device=device)
        self.sizes, self.graphs, pool = config.capture_sizes(), {}, new_pool(backend)
        for size in reversed(self.sizes):
            self.forward(size)
            self.graphs[size] = capture(lambda size=size: self.forward(size), backend=backend, pool=pool)

    def forward(self, num_tokens: int) -> torch.Tensor:
        hidden = self.hidden[:num_tokens]
        return hidden + (hidden @ self.up).relu() @ self.down

    def dispatch(self) -> int | None:
        return next((size for size in self.sizes if size >= self.num_reqs), None)

    def execute_model(self) -> torch.Tensor:
        size = self.dispatch()
        if size is None:
            return self.forward(self.num_reqs)
        self.graphs[size].replay()
        return self.graphs[size].outputs


def program(fixed: bool, device: torch.device) -> SimpleNamespace:
    runner = NPUModelRunner(CompilationConfig(fixed, MAX_NUM_SEQS), device)
    numbers, load = torch.Generator().manual_seed(1), cycle((3, 8, 10, 12))

    def vary() -> None:
        runner.num_reqs = next(load)
        runner.hidden.copy_(torch.randn(MAX_NUM_SEQS, HIDDEN, generator=numbers))

    return SimpleNamespace(
        step=runner.execute_model,
        eager=lambda: runner.forward(runner.num_reqs),
        own_graphs=True,
        vary=vary,
        rows=lambda: runner.num_reqs,
        requests=4,
        runner=runner,
    )
