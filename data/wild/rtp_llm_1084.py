"""A server hung while it decoded with graphs. Decoding by tensor cores follows a plan, made from the page
table and kept between steps. Before a replay only the page table was brought up to date: the graph went on
with the plan of an earlier batch, which tells it where the work for a sequence begins and ends. Repaired
by planning anew before each replay.
"""

from types import SimpleNamespace

import torch

PROJECT = "RTP-LLM"
LINK = "https://github.com/alibaba/rtp-llm/pull/1084"
MECHANISM = "stale-input"
CAUSE = "self.tiles"
LINE = "sequence, tile = self.tiles.T"
EXECUTORS = ("emulated", "cuda")

ROWS, PAGES, MAX_TILES = 2, 6, 8


class DecodeWrapper:
    """Attention over pages, a tile of the plan for each page of each sequence."""

    def __init__(self, device: torch.device):
        self.page_table = torch.zeros(ROWS, PAGES, dtype=torch.int64, device=device)
        self.tiles = torch.zeros(MAX_TILES, 2, dtype=torch.int64, device=device)  # sequence, page
        self.cache = torch.linspace(1, 2, 16, device=device)

    def plan(self, num_pages: list[int]) -> None:
        rest = [[ROWS, 0]] * (MAX_TILES - sum(num_pages))  # nobody's
        tiles = [[i, tile] for i, n in enumerate(num_pages) for tile in range(n)]
        self.tiles.copy_(torch.tensor(tiles + rest))

    def run(self) -> torch.Tensor:
        sequence, tile = self.tiles.T
        partial = self.cache[self.page_table[sequence.clamp(max=ROWS - 1), tile]]
        return partial.new_zeros(ROWS + 1).index_add_(0, sequence, partial)[:ROWS]


def program(fixed: bool, device: torch.device) -> SimpleNamespace:
    wrapper = DecodeWrapper(device)
    wrapper.plan([1, 1])
    numbers = torch.Generator().manual_seed(0)
    batches = iter([[2, 3], [6, 1], [1, 4]] * 4)

    def prepare_cuda_graph() -> None:
        num_pages = next(batches)
        wrapper.page_table.copy_(torch.randint(0, 16, (ROWS, PAGES), generator=numbers))
        if fixed:
            wrapper.plan(num_pages)

    return SimpleNamespace(step=wrapper.run, vary=prepare_cuda_graph, wrapper=wrapper)
