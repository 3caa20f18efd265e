"""Live requests of a Mamba model read and wrote the recurrent state of others, under whole graphs with
padding. A padded row has no tokens, but the counters of the request that once had this row, and where these
say that its prompt was not done, the row counts as a prefill; the buffer of state indices, which graphs
read, is refreshed for batches of decodes only and keeps the rows of an earlier one. Proposed repair: only
rows with tokens are prefills. In 0.23.0 the V1 runner clears the flag of padded rows instead.
"""

from functools import partial
from types import SimpleNamespace

import torch

from mrv2lab.graphs import capture

PROJECT = "vLLM"
LINK = "https://github.com/vllm-project/vllm/pull/42947"
MECHANISM = "stale-input"
CAUSE = "state_indices_d"
LINE = "if num_prefills == 0:"
EXECUTORS = ("emulated", "cuda")

MAX_REQS, NULL_BLOCK, BLOCKS, DIM = 4, 0, 6, 3


class MambaMetadataBuilder:
    """State indices of a batch: of its own, or in the buffer that graphs read."""

    def __init__(self, fixed: bool, device: torch.device):
        self.fixed = fixed
        self.state_indices_d = torch.full((MAX_REQS,), NULL_BLOCK, device=device)

    def build(self, blocks: torch.Tensor, query_lens: torch.Tensor, is_prefilling: torch.Tensor) -> None:
        is_prefill = (query_lens > 1) | is_prefilling
        if self.fixed:
            is_prefill &= query_lens > 0
        num_prefills = int(is_prefill.sum())
        if num_prefills == 0:
            self.state_indices_d.fill_(NULL_BLOCK)
            self.state_indices_d[: len(blocks)].copy_(blocks)


class GPUModelRunner:
    def __init__(self, fixed: bool, device: torch.device):
        self.device, self.backend = device, "cuda" if device.type == "cuda" else "emulated"
        self.num_computed, self.num_prompt = (torch.zeros(MAX_REQS, dtype=torch.int64) for _ in range(2))
        self.builder = MambaMetadataBuilder(fixed, device)
        self.ssm_state = torch.zeros(BLOCKS, DIM, device=device)
        self.x = torch.ones(MAX_REQS, DIM, device=device)
        self.decode(self.builder.state_indices_d)
        self.graph = capture(lambda: self.decode(self.builder.state_indices_d), backend=self.backend)
        self.ssm_state.zero_()

    def decode(self, indices: torch.Tensor) -> torch.Tensor:
        state = self.ssm_state[indices] * 0.5 + self.x[: len(indices)]
        self.ssm_state.index_copy_(0, indices, state)
        return state * 2

    def set_batch(self, rows: list[tuple[int, int, int, int]]) -> None:
        """Of each request: its block, its tokens in this step, those before it and those of its prompt."""
        self.num_reqs = len(rows)
        blocks, lens, computed, prompt = torch.tensor(rows).T
        self.blocks, self.query_lens = blocks.to(self.device), lens
        self.num_computed[: len(rows)], self.num_prompt[: len(rows)] = computed, prompt

    def execute_model(self, use_graphs: bool) -> torch.Tensor:
        n = self.num_reqs
        if not use_graphs or int(self.query_lens.max()) > 1:
            for _ in range(int(self.query_lens.max()) - 1):  # the rest of a prompt, in the last row
                self.ssm_state[self.blocks[-1:]] *= 0.5
            return self.decode(self.blocks)
        query_lens = torch.zeros(MAX_REQS, dtype=torch.int64)
        query_lens[:n] = self.query_lens
        self.builder.build(self.blocks, query_lens, self.num_computed < self.num_prompt)
        self.graph.replay()
        return self.graph.outputs[:n]


def program(fixed: bool, device: torch.device) -> SimpleNamespace:
    runner = GPUModelRunner(fixed, device)
    first = [(1, 1, 9, 4), (2, 1, 8, 4), (3, 1, 7, 4)]
    second = [*first, (4, 3, 0, 6)]  # one begins, with half of its prompt
    batches = iter((first, second, [first[1], first[2], first[0]], first[::-1]))
    runner.set_batch([(1, 1, 8, 4), (2, 1, 7, 4)])

    def vary() -> None:
        runner.set_batch(next(batches))
        runner.x.add_(0.25)

    step, eager = partial(runner.execute_model, True), partial(runner.execute_model, False)
    return SimpleNamespace(step=step, eager=eager, own_graphs=True, vary=vary, requests=4, runner=runner)
