"""Gemma 3, with global and sliding-window attention: wrong answers with graphs. A batch's schedule for the
attention kernels is planned on the host, into a pinned buffer from which the graph copies it. With several
wrappers the planning was put off to the forward pass: a replay runs no Python, and copies the schedule of an
earlier batch. Repaired by planning when the batch is prepared.
"""

from types import SimpleNamespace

import torch

from mrv2lab.graphs import host

PROJECT = "TensorRT-LLM"
LINK = "https://github.com/NVIDIA/TensorRT-LLM/pull/18443"
MECHANISM = "left-behind"
CAUSE = "self.num_pages"
LINE = "self.plan()  # put off"
EXECUTORS = ("emulated", "cuda")

ROWS, PAGE, PAGES = 3, 4, 5


class FlashInferAttentionMetadata:
    """How many pages of the cache each request has, and attention over them."""

    def __init__(self, fixed: bool, device: torch.device):
        self.fixed, self.num_pages = fixed, [1] * ROWS
        self.pinned = host(torch.ones(ROWS, dtype=torch.int64), pinned=True)
        self.schedule = torch.ones(ROWS, dtype=torch.int64, device=device)
        self.cache = torch.linspace(0, 1, PAGES * PAGE, device=device)
        self.query = torch.ones(ROWS, 1, device=device)

    def plan(self) -> None:
        for row, pages in enumerate(self.num_pages):
            self.pinned[row] = pages

    def prepare(self, num_pages: list[int]) -> None:
        self.num_pages = num_pages
        if self.fixed:
            self.plan()

    def forward(self) -> torch.Tensor:
        if not self.fixed:
            self.plan()  # put off
        self.schedule.copy_(self.pinned, non_blocking=True)
        page = torch.arange(PAGES * PAGE, device=self.cache.device) // PAGE
        weights = (self.query * self.cache).exp() * (page[None] < self.schedule[:, None])
        return (weights * self.cache).sum(1) / weights.sum(1)


def program(fixed: bool, device: torch.device) -> SimpleNamespace:
    metadata = FlashInferAttentionMetadata(fixed, device)
    numbers = torch.Generator().manual_seed(0)

    def vary() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize()  # the tokens of the last step have been read
        metadata.prepare(torch.randint(1, PAGES + 1, (ROWS,), generator=numbers).tolist())
        metadata.query.copy_(torch.rand(ROWS, 1, generator=numbers))

    return SimpleNamespace(step=metadata.forward, vary=vary, metadata=metadata)
