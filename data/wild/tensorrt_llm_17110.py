"""Speculative decoding of an MLA model lost accuracy with graphs, while as many drafts as before were
accepted. New latents are written to the cache on the device only where each request brings one token; a
verification step brings 1 + drafts and falls to a loop on the host, whose positions and blocks are those of
the batch at capture. Replays write to its dummy blocks, and real requests attend to what was never written.
Repaired by writing any number of tokens on the device.
"""

from dataclasses import dataclass
from itertools import cycle
from types import SimpleNamespace

import torch

PROJECT = "TensorRT-LLM"
LINK = "https://github.com/NVIDIA/TensorRT-LLM/pull/17110"
MECHANISM = "frozen-host-value"
CAUSE = "metadata.num_cached_tokens_per_seq"
LINE = "position = metadata.num_cached_tokens_per_seq[n] + token"
EXECUTORS = ("emulated", "cuda")

MAX_DRAFT_LEN, BATCH, BLOCK, BLOCKS_PER_SEQ, NUM_BLOCKS, RANK = 2, 2, 4, 3, 12, 4
Q_LEN, MAX_LEN = 1 + MAX_DRAFT_LEN, BLOCK * BLOCKS_PER_SEQ


@dataclass
class AttentionMetadata:
    """What attention knows of a batch, on the host and on the device."""

    device: torch.device
    is_cuda_graph: bool = True

    def __post_init__(self) -> None:
        self.num_cached_cuda = torch.zeros(BATCH, dtype=torch.int64, device=self.device)
        self.block_ids_cuda = torch.zeros(BATCH, BLOCKS_PER_SEQ, dtype=torch.int64, device=self.device)

    def prepare(self, block_ids: dict[int, list[int]], request_ids: list[int], num_cached: list[int]) -> None:
        self.request_ids, self.num_cached_tokens_per_seq = request_ids, num_cached
        self.num_cached_cuda.copy_(torch.tensor(num_cached))
        self.block_ids_cuda.copy_(torch.tensor([block_ids[request] for request in request_ids]))

    def positions(self) -> torch.Tensor:
        return self.num_cached_cuda[:, None] + torch.arange(Q_LEN, device=self.device)


class KVCacheManager:
    def __init__(self, device: torch.device):
        self.latents = torch.zeros(NUM_BLOCKS * BLOCK, RANK, device=device)
        self.block_ids = {r: [r + 4 * n for n in range(BLOCKS_PER_SEQ)] for r in range(4)}

    def append(self, metadata: AttentionMetadata, latent_cache: torch.Tensor) -> None:
        for n, request_id in enumerate(metadata.request_ids):
            for token in range(len(latent_cache) // BATCH):
                position = metadata.num_cached_tokens_per_seq[n] + token
                slot = self.block_ids[request_id][position // BLOCK] * BLOCK + position % BLOCK
                self.latents[slot].copy_(latent_cache[n * Q_LEN + token])

    def append_cuda_graph_safe(self, metadata: AttentionMetadata, latent_cache: torch.Tensor, fixed: bool):
        q_len_is_one = len(latent_cache) == BATCH
        if not metadata.is_cuda_graph or not (q_len_is_one or fixed):
            return self.append(metadata, latent_cache)
        positions = metadata.positions()
        slots = metadata.block_ids_cuda.gather(1, positions // BLOCK) * BLOCK + positions % BLOCK
        self.latents.index_copy_(0, slots.flatten(), latent_cache)


def program(fixed: bool, device: torch.device) -> SimpleNamespace:
    manager, latent_cache = KVCacheManager(device), torch.ones(BATCH * Q_LEN, RANK, device=device)
    captured, uncaptured = AttentionMetadata(device), AttentionMetadata(device, is_cuda_graph=False)
    every, numbers = torch.arange(MAX_LEN, device=device), torch.Generator().manual_seed(0)
    batches = cycle([([2, 3], [0, 0]), ([2, 3], [2, 1]), ([3, 2], [4, 5]), ([3, 2], [6, 8])])

    def forward(metadata: AttentionMetadata) -> torch.Tensor:
        manager.append_cuda_graph_safe(metadata, latent_cache, fixed)
        kv = manager.latents[metadata.block_ids_cuda[:, every // BLOCK] * BLOCK + every % BLOCK]
        scores = latent_cache.view(BATCH, Q_LEN, RANK) @ kv.mT
        seen = every <= metadata.positions()[:, :, None]
        return torch.softmax(scores.masked_fill(~seen, -1e9), 2) @ kv

    def prepare(request_ids: list[int], num_cached: list[int]) -> None:
        for metadata in (captured, uncaptured):
            metadata.prepare(manager.block_ids, request_ids, num_cached)

    def vary() -> None:
        prepare(*next(batches))
        latent_cache.copy_(torch.rand(BATCH * Q_LEN, RANK, generator=numbers))

    prepare([0, 1], [0, 0])  # dummy requests
    served = SimpleNamespace(step=lambda: forward(captured), eager=lambda: forward(uncaptured), vary=vary)
    served.requests, served.manager, served.metadata = 4, manager, captured
    return served
