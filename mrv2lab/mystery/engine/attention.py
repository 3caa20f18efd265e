"""Attention over a KV cache whose entries are divided by a scale, as an 8-bit cache needs it.

The functions below the class go into its three seams: how keys and values are written, how they are read,
and how the context of each token is found.
"""

from dataclasses import replace
from types import MethodType

import torch
from torch import Tensor

from mrv2lab.mystery.engine.block_table import Parts, StepState
from mrv2lab.runner.attention import Attention
from mrv2lab.runner.config import RunnerConfig
from mrv2lab.runner.forward_context import AttentionMetadata


class ContextBuffers:
    """Where the context of each token lies; one for all layers, at addresses that stay."""

    def __init__(self, config: RunnerConfig, device: torch.device):
        shape = (config.max_num_tokens, config.max_num_blocks * config.block_size)
        self.slots = torch.zeros(shape, dtype=torch.int64, device=device)
        self.visible = torch.zeros(shape, dtype=torch.bool, device=device)


class ScaledAttention(Attention):
    """Attention with a scaled cache. The scale is settled by the first batch of requests.

    Mirrors `calculate_kv_scales` of vLLM's attention layer, which also keeps the scale twice: as a tensor for
    kernels, and as a float for those that take one.
    """

    kv_scale: Tensor  # []

    def __init__(self, like: Attention, index: int, buffers: ContextBuffers, step: StepState, parts: Parts):
        num_slots = like.kv_cache.shape[1] - 1
        num_blocks = num_slots // like.block_size
        super().__init__(like.num_heads, like.head_dim, num_blocks, like.block_size, like.kv_cache.dtype)
        self.register_buffer("kv_scale", torch.ones((), dtype=like.kv_cache.dtype))
        self.kv_scale_float, self.calculate_kv_scales = 1.0, True
        self.layer_index, self.context_buffers, self.step = index, buffers, step
        self.write_kv = MethodType(parts["attention.write_kv"], self)
        self.read_kv = MethodType(parts["attention.read_kv"], self)
        self.context = MethodType(parts["attention.context"], self)
        self.to(like.kv_cache.device)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, meta: AttentionMetadata) -> Tensor:
        """Write keys and values to the cache, then attend. All [num_tokens, num_heads, head_dim]."""
        if self.calculate_kv_scales and not self.step.is_dummy:
            self.kv_scale.copy_(k.abs().max())  # the largest key of this batch, once and for all
            self.kv_scale_float, self.calculate_kv_scales = self.kv_scale.item(), False
        self.write_kv(k, v, meta)
        slots, visible = self.context(meta, q.shape[0])
        keys, values = self.read_kv(slots)  # each [num_tokens, max_seq_len, num_heads, head_dim]
        scores = torch.einsum("thd,tlhd->thl", q, keys) * self.head_dim**-0.5
        scores = scores.masked_fill(~visible[:, None, :], -1e30)
        return torch.einsum("thl,tlhd->thd", scores.softmax(dim=-1), values)


# ---- attention.write_kv ----


def write_kv_always(self: ScaledAttention, k: Tensor, v: Tensor, meta: AttentionMetadata) -> None:
    """Store keys and values of this batch, each [num_tokens, num_heads, head_dim], in their slots."""
    self.kv_cache[:, meta.slot_mapping] = torch.stack([k, v]) / self.kv_scale


def write_kv_if_kept(self: ScaledAttention, k: Tensor, v: Tensor, meta: AttentionMetadata) -> None:
    """Store keys and values of this batch, each [num_tokens, num_heads, head_dim], in their slots."""
    if self.step.is_dummy:
        return  # nobody keeps what a dummy batch computes
    self.kv_cache[:, meta.slot_mapping] = torch.stack([k, v]) / self.kv_scale


# ---- attention.read_kv ----


def read_kv_scaled_back(self: ScaledAttention, slots: Tensor) -> Tensor:
    """Keys and values of these slots, [2, *slots.shape, num_heads, head_dim], at their own size again."""
    return self.kv_cache[:, slots] * self.kv_scale


def read_kv_scaled_up(self: ScaledAttention, slots: Tensor) -> Tensor:
    """Keys and values of these slots, [2, *slots.shape, num_heads, head_dim], at their own size again."""
    return self.kv_cache[:, slots] * self.kv_scale_float


# ---- attention.context ----

Context = tuple[Tensor, Tensor]  # of each token, both [num_tokens, max_seq_len]


def _fill(self: ScaledAttention, meta: AttentionMetadata, num_tokens: int) -> None:
    """Write slots, and which of them each token may see, into the shared buffers."""
    slots, visible = self._context(meta, num_tokens)
    self.context_buffers.slots[:num_tokens, : meta.max_seq_len].copy_(slots)
    self.context_buffers.visible[:num_tokens, : meta.max_seq_len].copy_(visible)


def _filled(self: ScaledAttention, num_tokens: int, length: int) -> Context:
    buffers = self.context_buffers
    return buffers.slots[:num_tokens, :length], buffers.visible[:num_tokens, :length]


def context_by_layer(self: ScaledAttention, meta: AttentionMetadata, num_tokens: int) -> Context:
    """Slots of each token's request, and which it may see; one layer works it out for all."""
    if self.layer_index == 0:
        _fill(self, meta, num_tokens)
    return _filled(self, num_tokens, meta.max_seq_len)


def context_by_first(self: ScaledAttention, meta: AttentionMetadata, num_tokens: int) -> Context:
    """Slots of each token's request, and which it may see; one layer works it out for all."""
    if not self.step.has_context:
        _fill(self, meta, num_tokens)
        self.step.has_context = True
    return _filled(self, num_tokens, meta.max_seq_len)


def context_to_longest(self: ScaledAttention, meta: AttentionMetadata, num_tokens: int) -> Context:
    """Slots of each token's request, and which it may see; one layer works it out for all."""
    if self.layer_index == 0:
        _fill(self, meta, num_tokens)
    longest = int(meta.seq_lens.max())  # often less than meta.max_seq_len
    return _filled(self, num_tokens, longest)


def context_with_decode(self: ScaledAttention, meta: AttentionMetadata, num_tokens: int) -> Context:
    """Slots of each token's request, and which it may see; one layer works it out for all."""
    if self.layer_index == 0:
        if meta.max_query_len == 1:  # decode: every token is a request of its own
            starts = torch.arange(num_tokens + 1, dtype=torch.int32, device=self.kv_cache.device)
            meta = replace(meta, query_start_loc=starts)
        _fill(self, meta, num_tokens)
    return _filled(self, num_tokens, meta.max_seq_len)
