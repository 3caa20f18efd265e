"""A server crashed on sequences longer than what its graphs were captured for. Such batches are to run
eagerly, and a check compares the longest decode of the batch with the limit. A slip in the name of that
number let all batches pass, and their block tables do not fit into those of the graph. Repaired by
correcting the name. Which other name stood there is not told; here it is that of the prefills, of which a
decode batch has none.
"""

from types import SimpleNamespace

import torch

from mrv2lab.graphs import capture

PROJECT = "vLLM"
LINK = "https://github.com/vllm-project/vllm/pull/9285"
MECHANISM = "incomplete-key"
CAUSE = "max_decode_seq_len"
LINE = "return max_decode_seq_len <= MAX_SEQ_LEN_TO_CAPTURE"
EXECUTORS = ("emulated", "cuda")

ROWS, BLOCK, MAX_SEQ_LEN_TO_CAPTURE, MAX_MODEL_LEN = 2, 4, 16, 32


class ModelRunner:
    """Decode steps over block tables: short ones by a graph."""

    def __init__(self, fixed: bool, device: torch.device):
        self.fixed, self.device = fixed, device
        self.cache = torch.linspace(1, 2, MAX_MODEL_LEN // BLOCK, device=device)
        self.input_block_tables = torch.zeros(
            ROWS, MAX_SEQ_LEN_TO_CAPTURE // BLOCK, dtype=torch.int64, device=device
        )
        self.seq_lens = [1] * ROWS
        self.attend(self.input_block_tables)  # warms up
        backend = "cuda" if device.type == "cuda" else "emulated"
        self.graph = capture(lambda: self.attend(self.input_block_tables), backend=backend)

    def attend(self, block_tables: torch.Tensor) -> torch.Tensor:
        return self.cache[block_tables].sum(1)

    def use_captured_graph(self, decode_seq_lens: list[int], prefill_seq_lens: list[int]) -> bool:
        max_decode_seq_len = max(decode_seq_lens if self.fixed else prefill_seq_lens, default=0)
        return max_decode_seq_len <= MAX_SEQ_LEN_TO_CAPTURE

    def block_tables(self) -> torch.Tensor:
        width = max(max(self.seq_lens), MAX_SEQ_LEN_TO_CAPTURE) // BLOCK
        columns = torch.arange(width, device=self.device)
        lens = torch.tensor(self.seq_lens, device=self.device)
        return torch.where(columns < lens[:, None] // BLOCK, columns, 0)

    def execute(self) -> torch.Tensor:
        if not self.use_captured_graph(self.seq_lens, []):
            return self.attend(self.block_tables())
        self.input_block_tables.copy_(self.block_tables())
        self.graph.replay()
        return self.graph.outputs


def program(fixed: bool, device: torch.device) -> SimpleNamespace:
    runner = ModelRunner(fixed, device)
    batches = iter([[8, 16], [12, 4], [28, 8], [16, 32]] * 3)

    def vary() -> None:
        runner.seq_lens = next(batches)
        runner.cache.add_(1)

    return SimpleNamespace(
        step=runner.execute,
        eager=lambda: runner.attend(runner.block_tables()),
        own_graphs=True,
        vary=vary,
        requests=4,
        runner=runner,
    )
