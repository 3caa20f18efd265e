"""With data and expert parallelism graphs gave wrong results after the load had moved between ranks. Graphs
are found by the largest number of tokens of a rank, rounded up. Two steps of the same graph may share tokens
out otherwise; what the host made of that at capture, as slices and as ranks that are left out for being
empty, stays in the graph. Repaired by noting the numbers of all ranks with each graph, and by running eagerly
where they are others.
"""

from collections.abc import Callable
from functools import partial
from itertools import cycle
from types import SimpleNamespace

import torch

from mrv2lab.graphs import capture

PROJECT = "xLLM"
LINK = "https://github.com/xLLM-AI/xllm/pull/2065"
MECHANISM = "incomplete-key"
CAUSE = "self.dp_global_token_nums"
LINE = "bucket = self.bucket(max(self.dp_global_token_nums))"
EXECUTORS = ("emulated", "cuda")

DP_SIZE, RANK, MAX_TOKENS, HIDDEN, EXPERTS = 3, 1, 8, 4, 3


class DpEpPadding:
    """Tokens of all ranks in one persistent buffer, each rank's padded to the same length."""

    def __init__(self, device: torch.device):
        self.gathered, self.combined = torch.zeros(2, DP_SIZE, MAX_TOKENS, HIDDEN, device=device)


class MoeLayer:
    def __init__(self, device: torch.device):
        numbers = torch.Generator().manual_seed(0)
        self.gate = torch.randn(HIDDEN, EXPERTS, generator=numbers).to(device)
        self.experts = torch.randn(EXPERTS, HIDDEN, generator=numbers).to(device)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return tokens + torch.softmax(tokens @ self.gate, 1) @ self.experts


class AclGraphExecutor:
    def __init__(self, fixed: bool, device: torch.device):
        self.fixed, self.backend = fixed, "cuda" if device.type == "cuda" else "emulated"
        self.padding, self.layer = DpEpPadding(device), MoeLayer(device)
        self.dp_global_token_nums = [1] * DP_SIZE
        self.graphs, self.captured_token_nums = {}, {}

    def bucket(self, num_tokens: int) -> int:
        return next(size for size in (1, 2, 4, 8) if size >= num_tokens)

    def forward(self) -> torch.Tensor:
        for rank, num_tokens in enumerate(self.dp_global_token_nums):
            if num_tokens == 0:
                continue
            tokens = self.padding.gathered[rank, :num_tokens]
            self.padding.combined[rank, :num_tokens].copy_(self.layer.forward(tokens))
        return self.padding.combined

    def run(self) -> torch.Tensor:
        bucket = self.bucket(max(self.dp_global_token_nums))
        if bucket not in self.graphs:
            self.forward()
            self.graphs[bucket] = capture(self.forward, backend=self.backend)
            self.captured_token_nums[bucket] = self.dp_global_token_nums
        if self.fixed and self.captured_token_nums[bucket] != self.dp_global_token_nums:
            return self.forward()
        self.graphs[bucket].replay()
        return self.graphs[bucket].outputs


def program(fixed: bool, device: torch.device) -> SimpleNamespace:
    executor, numbers = AclGraphExecutor(fixed, device), torch.Generator().manual_seed(1)
    loads = cycle([[4, 2, 3], [3, 3, 4], [4, 0, 2], [2, 4, 4], [8, 5, 1], [6, 7, 0]])

    def vary() -> None:
        executor.dp_global_token_nums = next(loads)
        executor.padding.gathered.copy_(torch.randn(DP_SIZE, MAX_TOKENS, HIDDEN, generator=numbers))

    def local_tokens(run: Callable[[], torch.Tensor]) -> torch.Tensor:
        return run()[RANK, : executor.dp_global_token_nums[RANK]]

    step, eager = partial(local_tokens, executor.run), partial(local_tokens, executor.forward)
    served = SimpleNamespace(step=step, eager=eager, own_graphs=True, vary=vary)
    served.requests, served.executor = 6, executor
    return served
