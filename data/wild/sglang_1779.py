"""NaN in the logits of some models with graphs, mostly with dynamic FP8 quantization. A decode batch is
padded to the size of its graph, and padded requests got length 0: attention over nothing gives NaN in their
rows. A scale that is taken over all rows then spreads it to the real ones. Repaired by padding with length
1.
"""

from types import SimpleNamespace

import torch

PROJECT = "SGLang"
LINK = "https://github.com/sgl-project/sglang/pull/1779"
MECHANISM = "padding-leak"
CAUSE = "seq_len_fill_value"
LINE = "seq_len_fill_value = 1 if fixed else 0"
EXECUTORS = ("emulated", "cuda")

ROWS, CONTEXT = 4, 8


def forward(seq_lens: torch.Tensor, query: torch.Tensor, cache: torch.Tensor) -> torch.Tensor:
    is_seen = torch.arange(CONTEXT, device=seq_lens.device)[None] < seq_lens[:, None]
    weights = (query[:, None] * cache).exp() * is_seen
    attended = (weights * cache).sum(1) / weights.sum(1)
    scale = attended.abs().amax() / 127  # one for all rows: dynamic quantization
    return (attended / scale).round() * scale


def program(fixed: bool, device: torch.device) -> SimpleNamespace:
    seq_len_fill_value = 1 if fixed else 0
    numbers = torch.Generator().manual_seed(0)
    seq_lens = torch.ones(ROWS, dtype=torch.int64, device=device)
    query = torch.ones(ROWS, device=device)
    cache = torch.linspace(0.1, 1.5, CONTEXT, device=device)
    batch = {"size": ROWS}
    sizes = iter((3, 2, 1) * 9)

    def vary() -> None:
        batch["size"] = next(sizes)
        lens = torch.full((ROWS,), seq_len_fill_value)
        lens[: batch["size"]] = torch.randint(4, CONTEXT + 1, (batch["size"],), generator=numbers)
        seq_lens.copy_(lens)
        query.copy_(torch.rand(ROWS, generator=numbers))

    return SimpleNamespace(
        step=lambda: forward(seq_lens, query, cache),
        eager=lambda: forward(seq_lens[: batch["size"]], query[: batch["size"]], cache),  # is not padded
        vary=vary,
        rows=lambda: batch["size"],
    )
