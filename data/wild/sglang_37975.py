"""Kernels that were put in place of FlashInfer's MLA decode gave wrong output under CUDA graphs. The
wrapper of a graph has buffers of its own, also for where each sequence begins in the list of pages; but
before a replay these offsets were computed into the buffer of eager steps. FlashInfer's own kernel never
reads them on the device, so nobody had noticed. Proposed repair: compute them where the graph reads them.
"""

from types import SimpleNamespace

import torch

PROJECT = "SGLang"
LINK = "https://github.com/sgl-project/sglang/pull/37975"
MECHANISM = "stale-input"
CAUSE = "kv_indptr"
LINE = "kv_indptr = wrapper.cuda_graph_kv_indptr"
EXECUTORS = ("emulated", "cuda")

ROWS, PAGES = 3, 16


class IndicesUpdaterDecode:
    """Brings metadata up to date before a replay."""

    def __init__(self, fixed: bool, device: torch.device):
        self.fixed = fixed
        self.kv_indptr = torch.zeros(ROWS + 1, dtype=torch.int64, device=device)

    def update(self, wrapper: SimpleNamespace, seq_lens: torch.Tensor) -> None:
        kv_indptr = wrapper.cuda_graph_kv_indptr if self.fixed else self.kv_indptr
        kv_indptr[1:] = seq_lens.cumsum(0)
        wrapper.cuda_graph_kv_indices.copy_(wrapper.cuda_graph_kv_indices.roll(1))


def program(fixed: bool, device: torch.device) -> SimpleNamespace:
    updater = IndicesUpdaterDecode(fixed, device)
    wrapper = SimpleNamespace(
        cuda_graph_kv_indptr=torch.arange(ROWS + 1, device=device),
        cuda_graph_kv_indices=torch.arange(PAGES, device=device),
    )
    latent_cache = torch.linspace(1, 2, PAGES, device=device)
    batches = iter([[2, 4, 3], [5, 1, 6], [3, 3, 7]] * 4)

    def decode() -> torch.Tensor:
        pages = torch.arange(PAGES, device=device)
        kv_indptr = wrapper.cuda_graph_kv_indptr
        is_seen = (kv_indptr[:-1, None] <= pages) & (pages < kv_indptr[1:, None])
        return (latent_cache[wrapper.cuda_graph_kv_indices] * is_seen).sum(1)

    return SimpleNamespace(
        step=decode,
        vary=lambda: updater.update(wrapper, torch.tensor(next(batches), device=device)),
        updater=updater,
        wrapper=wrapper,
    )
