"""A graph with a small and then a large `radix_sort_pairs` died when it was launched, with a corrupted
context. Sorts share scratch memory that grows as needed. It grew in the middle of the capture: the memory
that the first sort had been recorded with was freed, and that sort goes on writing there. Repaired by
giving each captured graph scratch memory of its own, which lives as long as it.
"""

from types import SimpleNamespace

import torch

from mrv2lab.graphs import capture

PROJECT = "Warp"
LINK = "https://github.com/NVIDIA/warp/issues/1373"
MECHANISM = "liveness"
CAUSE = "self.scratch"
LINE = "self.scratch = None"
EXECUTORS = ("cuda",)  # another tensor must get the memory: the emulator lends freed memory to nobody

SMALL, LARGE = 1 << 20, 1 << 21


class Sorter:
    """Sorts in scratch memory, which holds the result before it is copied back."""

    def __init__(self, fixed: bool, device: torch.device):
        self.fixed, self.device = fixed, device
        self.scratch: torch.Tensor | None = None
        self.of_graphs: list[torch.Tensor] = []

    def radix_sort(self, keys: torch.Tensor, capturing: bool) -> None:
        if capturing and self.fixed:
            self.of_graphs.append(torch.empty_like(keys))
            scratch = self.of_graphs[-1]
        else:
            if self.scratch is None or len(self.scratch) < len(keys):
                self.scratch = None
                self.scratch = torch.empty_like(keys)
            scratch = self.scratch[: len(keys)]
        scratch.copy_(keys.flip(0))  # in place of the sort
        keys.copy_(scratch)


def program(fixed: bool, device: torch.device) -> SimpleNamespace:
    sorter = Sorter(fixed, device)
    small, large = torch.ones(SMALL, device=device), torch.ones(LARGE, device=device)
    arrays: list[torch.Tensor] = []

    def simulate(capturing: bool = False) -> torch.Tensor:
        sorter.radix_sort(small, capturing)
        sorter.radix_sort(large, capturing)
        return torch.stack([small[0], large[0]])

    def replay() -> torch.Tensor:
        graph.replay()
        return graph.outputs

    def vary() -> None:
        if not arrays:
            arrays.extend(torch.zeros(SMALL, device=device) for _ in range(4))
        small.mul_(1.5)
        large.mul_(2)

    sorter.radix_sort(small, False)  # grows to the small size
    graph = capture(lambda: simulate(True), backend="cuda")
    return SimpleNamespace(step=replay, eager=simulate, own_graphs=True, vary=vary, finish=lambda: arrays)
