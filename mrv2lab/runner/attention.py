"""Attention over a paged KV cache, in plain torch so that every step can be read."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum

import numpy as np
import torch
from torch import Tensor, nn

from mrv2lab.graphs.work import splitting
from mrv2lab.runner.forward_context import AttentionMetadata, get_forward_context


class AttentionCGSupport(Enum):
    """Which batches a FULL graph may hold. Mirrors its namesake in `vllm/v1/attention/backend.py`."""

    ALWAYS = 3  # any
    UNIFORM_BATCH = 2  # those whose requests have equally many tokens
    UNIFORM_SINGLE_TOKEN_DECODE = 1  # those whose requests have one token each
    NEVER = 0  # none; in vLLM the level of a backend that states none


@dataclass(frozen=True)
class AttentionBackend:
    """Who attends. `op` writes into the output that it is given; None if the layer has a way of its own."""

    name: str
    cudagraph_support: AttentionCGSupport
    op: Callable[..., None] | None = None


class Attention(nn.Module):
    """Causal attention of any mix of prefills and decodes. Mirrors `Attention` in
    `vllm/model_executor/layers`.

    The length of each request is read on the device. How far to look at all is read on the host:
    `max_seq_len` sizes the work, as it sizes the launch grid of real attention kernels. A graph is
    right for every batch whose requests are no longer than the `max_seq_len` it was captured with.
    `op` does the work. It writes into an output that it is given, so that a capture can break there.
    """

    backend: AttentionBackend
    op: Callable[..., None]
    kv_cache: Tensor  # [2, num_slots + 1, num_heads, head_dim]

    def __init__(self, num_heads: int, head_dim: int, num_blocks: int, block_size: int, dtype: torch.dtype):
        super().__init__()
        self.num_heads, self.head_dim, self.block_size = num_heads, head_dim, block_size
        # One row more than there are slots: PAD_SLOT_ID, -1, writes to the last row and nobody reads it.
        cache = torch.zeros(2, num_blocks * block_size + 1, num_heads, head_dim, dtype=dtype)
        self.register_buffer("kv_cache", cache)
        self.use(PAGED)

    def use(self, backend: AttentionBackend) -> None:
        """Let this backend do the work; before anything is captured."""
        assert backend.op is not None
        self.backend, self.op = backend, backend.op

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """All [num_tokens, num_heads, head_dim]."""
        output = torch.empty_like(q)
        with splitting():
            self.op(q, k, v, output, self)
        return output

    def attend(self, q: Tensor, k: Tensor, v: Tensor, meta: AttentionMetadata) -> Tensor:
        """Write keys and values to the cache, then attend. All [num_tokens, num_heads, head_dim]."""
        self.kv_cache[:, meta.slot_mapping] = torch.stack([k, v])
        slots, visible = self._context(meta, num_tokens=q.shape[0])
        keys, values = self.kv_cache[:, slots]  # each [num_tokens, max_seq_len, num_heads, head_dim]
        scores = torch.einsum("thd,tlhd->thl", q, keys) * self.head_dim**-0.5
        # Not -inf: a padding token sees nothing, and its softmax must stay finite.
        scores = scores.masked_fill(~visible[:, None, :], -1e30)
        return torch.einsum("thl,tlhd->thd", scores.softmax(dim=-1), values)

    def _context(self, meta: AttentionMetadata, num_tokens: int) -> tuple[Tensor, Tensor]:
        """For each token, the slots of its request in order of position, and which of them it may see. Both
        [num_tokens, max_seq_len].
        """
        token = torch.arange(num_tokens, dtype=torch.int32, device=meta.seq_lens.device)
        ends = meta.query_start_loc[1:]
        request = torch.searchsorted(ends, token, right=True).clamp(max=len(ends) - 1)
        position = meta.seq_lens[request] - (ends[request] - token)
        blocks = meta.block_table[request].long() * self.block_size  # [num_tokens, max_num_blocks]
        offsets = torch.arange(self.block_size, device=blocks.device)
        slots = (blocks[:, :, None] + offsets).flatten(1)[:, : meta.max_seq_len]
        visible = torch.arange(slots.shape[1], device=slots.device) <= position[:, None]
        return slots, visible


def unified_attention_with_output(
    query: Tensor, key: Tensor, value: Tensor, output: Tensor, layer: Attention
) -> None:
    """Attend with the metadata of the batch that runs NOW, and write the result into `output`.

    Mirrors its namesake in `vllm/model_executor/layers/attention`, which gets the layer by its name.
    All tensors are [num_tokens, num_heads, head_dim].
    """
    output.copy_(layer.attend(query, key, value, get_forward_context()))


def attention_by_device_lengths(
    query: Tensor, key: Tensor, value: Tensor, output: Tensor, layer: Attention
) -> None:
    """The same, but how far to look is fetched from the device: right in every step, and fit for no graph."""
    meta = get_forward_context()
    longest = int(meta.seq_lens.max())
    output.copy_(layer.attend(query, key, value, replace(meta, max_seq_len=longest)))


PAGED = AttentionBackend("PAGED", AttentionCGSupport.ALWAYS, unified_attention_with_output)
DEVICE_LENGTHS = AttentionBackend("DEVICE_LENGTHS", AttentionCGSupport.NEVER, attention_by_device_lengths)


def min_cg_backend(model: nn.Module) -> AttentionBackend:
    """Of the backends in a model, the one that supports least. What vLLM's `init_attn_backend` finds out."""
    backends = [layer.backend for layer in model.modules() if isinstance(layer, Attention)]
    return min(backends, key=lambda backend: backend.cudagraph_support.value, default=PAGED)


def uniform_query_len(query_lens: np.ndarray) -> int:
    """The one query length that a decode kernel of the TRT-LLM kind takes for a whole batch, of [num_reqs].

    Mirrors the check in vLLM's FlashInfer backend up to 0.29.0, which sees no more than the two sums.
    AssertionError: the tokens cannot be shared out evenly.
    """
    num_decodes, num_decode_tokens = len(query_lens), int(query_lens.sum())
    assert num_decode_tokens % num_decodes == 0, (
        "TRTLLM decode requires uniform query lengths per request. "
        f"Got num_decode_tokens={num_decode_tokens} and num_decodes={num_decodes}."
    )
    return num_decode_tokens // num_decodes
