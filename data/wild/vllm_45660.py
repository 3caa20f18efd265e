"""Quantized models now and then answered with garbage or padding tokens. A Marlin GEMM that splits its sum
adds partial products to its output with atomics, and the output is allocated without being zeroed. In a
graph it lies at the same address in each replay, so that a replay adds to what the one before has left.
Proposed repair: it is zeroed.
"""

from types import SimpleNamespace

import torch

PROJECT = "vLLM"
LINK = "https://github.com/vllm-project/vllm/pull/45660"
MECHANISM = "unwritten-read"
CAUSE = "output"
LINE = "output = torch.empty(m, n, device=a.device)"
EXECUTORS = ("emulated", "cuda")

ROWS, K, N, SPLITS = 4, 8, 6, 2


def marlin_gemm(a: torch.Tensor, b: torch.Tensor, fixed: bool) -> torch.Tensor:
    """[m, n]: the product, summed over splits of k by additions to memory."""
    (m, k), n = a.shape, b.shape[1]
    output = torch.empty(m, n, device=a.device)
    if fixed:
        output.zero_()
    rows = torch.arange(m, device=a.device)
    for part in range(SPLITS):
        split = slice(part * k // SPLITS, (part + 1) * k // SPLITS)
        output.index_add_(0, rows, a[:, split] @ b[split])
    return output


def program(fixed: bool, device: torch.device) -> SimpleNamespace:
    numbers = torch.Generator().manual_seed(0)
    hidden = torch.ones(ROWS, K, device=device)
    weight = torch.linspace(-1, 1, K * N, device=device).reshape(K, N)
    return SimpleNamespace(
        step=lambda: marlin_gemm(hidden, weight, fixed).relu(),
        vary=lambda: hidden.copy_(torch.rand(ROWS, K, generator=numbers)),
    )
