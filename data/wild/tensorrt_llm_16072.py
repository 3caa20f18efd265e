"""Under load a server lost its CUDA graphs for the rest of its life, and nothing said so. The dummy
request that pads a batch to the size of a graph was allocated at the first step that needs it. If the KV
cache is full by then, it gets no block, there or in any later step, and every batch that is not as large
as a graph runs eagerly. Repaired by allocating it at the end of the warm-up.
"""

from types import SimpleNamespace

import torch

from mrv2lab.graphs import capture, new_pool

PROJECT = "TensorRT-LLM"
LINK = "https://github.com/NVIDIA/TensorRT-LLM/pull/16072"
MECHANISM = "silent-eager"
SYMPTOM = "speed"
CAUSE = "self.padding_dummy()"
LINE = "if self.num_requests < size and self.padding_dummy() is None:"
EXECUTORS = ("emulated", "cuda")

MAX_BATCH, HIDDEN, SIZES = 4, 3, (2, 4)


class Engine:
    """Decode steps, by graphs of a few sizes."""

    def __init__(self, fixed: bool, device: torch.device):
        backend = "cuda" if device.type == "cuda" else "emulated"
        pool = new_pool(backend)
        self.num_requests, self.free_blocks, self.dummy = MAX_BATCH, MAX_BATCH + 1, None
        self.hidden = torch.ones(MAX_BATCH, HIDDEN, device=device)
        self.graphs = {}
        for size in SIZES:
            self.forward(size)
            self.graphs[size] = capture(lambda size=size: self.forward(size), backend=backend, pool=pool)
        if fixed:
            self.padding_dummy()

    def padding_dummy(self) -> int | None:
        """Its block of the KV cache."""
        if self.dummy is None and self.free_blocks:
            self.free_blocks -= 1
            self.dummy = self.free_blocks
        return self.dummy

    def forward(self, size: int) -> torch.Tensor:
        return torch.softmax(self.hidden[:size] * 2, 1).cumsum(1)

    def step(self) -> torch.Tensor:
        size = min(size for size in SIZES if size >= self.num_requests)
        if self.num_requests < size and self.padding_dummy() is None:
            return self.forward(self.num_requests)
        self.graphs[size].replay()
        return self.graphs[size].outputs


def program(fixed: bool, device: torch.device) -> SimpleNamespace:
    engine = Engine(fixed, device)
    numbers, batches = torch.Generator().manual_seed(0), iter((3, 1, 3, 4) * 4)

    def vary() -> None:
        engine.free_blocks = 0  # long contexts hold them all
        engine.num_requests = next(batches)
        engine.hidden.copy_(torch.rand(MAX_BATCH, HIDDEN, generator=numbers))

    return SimpleNamespace(
        step=engine.step,
        eager=lambda: engine.forward(engine.num_requests),
        own_graphs=True,
        vary=vary,
        rows=lambda: engine.num_requests,
        engine=engine,
    )
