"""Long contexts under decode graphs: tokens came out as <unk>, or CUDA error 700. Append attention splits
the cache into chunks and launches one part for each; how many there are follows from the longest sequence
of the batch, on the host. A graph that was captured for few chunks never looks at those behind them.
Repaired by launching, and making room, for as many chunks as the longest allowed context has.
"""

from types import SimpleNamespace

import torch

PROJECT = "FastDeploy"
LINK = "https://github.com/PaddlePaddle/FastDeploy/pull/3223"
MECHANISM = "frozen-grid"
CAUSE = "num_chunks"
LINE = "num_chunks = -(-(MAX_MODEL_LEN if fixed else max(batch.seq_lens_cpu)) // CHUNK)"
EXECUTORS = ("emulated", "cuda")

ROWS, CHUNK, MAX_MODEL_LEN = 2, 8, 32


def program(fixed: bool, device: torch.device) -> SimpleNamespace:
    keys = torch.linspace(-1, 1, ROWS * MAX_MODEL_LEN, device=device).view(ROWS, MAX_MODEL_LEN)
    query = torch.ones(ROWS, 1, device=device)
    seq_lens = torch.full((ROWS,), 5, dtype=torch.int64, device=device)
    batch = SimpleNamespace(seq_lens_cpu=[5] * ROWS)
    lengths = iter([[7, 3], [20, 6], [12, 31], [9, 30]] * 3)

    def append_attention() -> torch.Tensor:
        num_chunks = -(-(MAX_MODEL_LEN if fixed else max(batch.seq_lens_cpu)) // CHUNK)
        places = torch.arange(num_chunks * CHUNK, device=device)
        scores = (query * keys[:, : num_chunks * CHUNK]).exp() * (places < seq_lens[:, None])
        partial = scores.view(ROWS, num_chunks, CHUNK).sum(2)  # a part of the grid each
        return partial.sum(1)

    def vary() -> None:
        batch.seq_lens_cpu = next(lengths)
        seq_lens.copy_(torch.tensor(batch.seq_lens_cpu))
        query.add_(0.5)

    return SimpleNamespace(step=append_attention, vary=vary, batch=batch)
