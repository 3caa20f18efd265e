"""A small decoder with multi-head latent attention, on a FlashMLA-like or a FlashAttention-like backend.

Mirrors the roles, not the sizes, of `vllm/v1/attention/backends/mla/`, `flashmla.py` and `flashattn_mla.py`,
and a DeepSeek-style model. Keys and values of all heads are one latent row in the cache (arXiv 2405.04434);
the up-projections are absorbed into the query and output projections.
"""

import torch
from torch import nn

from mrv2lab.kernels.flash_attn import flash_attn_with_kvcache, get_scheduler_metadata, metadata_size
from mrv2lab.kernels.flash_mla import flash_mla_with_kvcache
from mrv2lab.runner.attention import Attention, AttentionBackend, AttentionCGSupport
from mrv2lab.runner.block_table import NULL_BLOCK
from mrv2lab.runner.config import RunnerConfig
from mrv2lab.runner.forward_context import AttentionMetadata, get_forward_context
from mrv2lab.runner.model import LinearFactory, rms_norm, rotary

KV_LORA_RANK = 32  # latent part of a cache row, which is also the value
ROPE_DIM = 16


def rows_of_decode(seq_lens: torch.Tensor, query_len: int) -> torch.Tensor:
    """For each token of a decode, [num_reqs * query_len], what it sees: its request up to itself; 0 for
    padding. `seq_lens`: [num_reqs] int32, with the `query_len` tokens that each request has in this step.
    """
    if query_len == 1:
        return seq_lens
    behind = torch.arange(query_len - 1, -1, -1, dtype=seq_lens.dtype, device=seq_lens.device)
    return (seq_lens[:, None] - behind).clamp(min=0).flatten()


class FlashAttnMLAMetadataBuilder:
    """Makes the plan of every batch, at an address that stays. Mirrors its namesake. There is one buffer for
    all sizes: `build` returns a view of it, and the next build writes there.
    """

    def __init__(self, config: RunnerConfig, device: torch.device):
        size = metadata_size(config.max_num_reqs * config.decode_query_len)
        self.scheduler_metadata = torch.zeros(size, dtype=torch.int32, device=device)
        self.page_size = config.block_size

    def build(self, seq_lens: torch.Tensor) -> torch.Tensor:
        """The plan for these rows, [metadata_size(num_rows)], zeros behind it."""
        made = get_scheduler_metadata(seq_lens, self.page_size)
        self.scheduler_metadata[: len(made)] = made
        self.scheduler_metadata[len(made) :] = 0
        return self.scheduler_metadata[: len(made)]


class MLAAttention(Attention):
    """Latent attention over the paged cache. Mirrors `FlashMLAImpl` and the prefill path beside it."""

    q_proj: torch.Tensor  # [num_heads * head_dim, hidden_size]
    kv_a_proj: torch.Tensor  # [head_dim, hidden_size]
    o_proj: torch.Tensor  # [hidden_size, num_heads * KV_LORA_RANK]
    kv_cache: torch.Tensor  # [num_pages, page_size, head_dim]
    backend = AttentionBackend("FLASHMLA", AttentionCGSupport.UNIFORM_BATCH)

    def __init__(self, config: RunnerConfig, weights: LinearFactory):
        nn.Module.__init__(self)
        self.num_heads, self.block_size = config.num_heads, config.block_size
        self.decode_query_len = config.decode_query_len
        hidden, head_dim = config.hidden_size, KV_LORA_RANK + ROPE_DIM
        self.register_buffer("q_proj", weights.weight(self.num_heads * head_dim, hidden))
        self.register_buffer("kv_a_proj", weights.weight(head_dim, hidden))
        self.register_buffer("o_proj", weights.weight(hidden, self.num_heads * KV_LORA_RANK))
        # One page more than there are: PAD_SLOT_ID, -1, writes to its last row and nobody reads it.
        num_blocks = NULL_BLOCK + 1 + config.max_num_reqs * config.max_num_blocks + 1
        self.register_buffer("kv_cache", torch.zeros(num_blocks, config.block_size, head_dim))
        self.scale = head_dim**-0.5

    def forward(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        """[num_tokens, hidden_size] -> the same."""
        meta = get_forward_context()
        q = (x @ self.q_proj.T).unflatten(-1, (self.num_heads, -1))  # [num_tokens, num_heads, head_dim]
        q = torch.cat([q[..., :KV_LORA_RANK], rotary(q[..., KV_LORA_RANK:], positions)], dim=-1)
        latent, k_rope = (x @ self.kv_a_proj.T).split([KV_LORA_RANK, ROPE_DIM], dim=-1)
        k_rope = rotary(k_rope[:, None], positions)[:, 0]
        self.kv_cache.flatten(0, 1)[meta.slot_mapping] = torch.cat([rms_norm(latent), k_rope], dim=-1)
        is_uniform = meta.max_query_len * len(meta.seq_lens) == len(q)
        attend = self._decode if is_uniform and meta.max_query_len <= self.decode_query_len else self._prefill
        return attend(q, meta).flatten(1) @ self.o_proj.T

    def _decode(self, q: torch.Tensor, meta: AttentionMetadata) -> torch.Tensor:
        """As many tokens for each request as a decode may have: the split-KV kernels, by the batch's plan.

        To these kernels each token is a request of its own, in the same pages. Those of vLLM's FlashMLA take
        the tokens of a request together, with a causal mask (0.23.0, v1/attention/backends/mla/flashmla.py:
        272, 320-328).
        """
        block_table = meta.block_table[:, None].expand(-1, meta.max_query_len, -1).flatten(0, 1)
        seq_lens, plan = rows_of_decode(meta.seq_lens, meta.max_query_len), meta.scheduler_metadata
        inputs = (q, self.kv_cache, block_table, seq_lens, KV_LORA_RANK)
        if isinstance(plan, torch.Tensor):
            return flash_attn_with_kvcache(*inputs, plan, self.scale)
        return flash_mla_with_kvcache(*inputs, plan, self.scale)

    def _prefill(self, q: torch.Tensor, meta: AttentionMetadata) -> torch.Tensor:
        """Any mix of lengths, in plain torch and without a plan."""
        slots, visible = self._context(meta, num_tokens=q.shape[0])
        keys = self.kv_cache.flatten(0, 1)[slots]  # [num_tokens, max_len, head_dim]
        scores = torch.einsum("thd,tld->thl", q, keys) * self.scale
        weights = scores.masked_fill(~visible[:, None, :], -1e30).softmax(dim=-1)
        return torch.einsum("thl,tld->thd", weights, keys[..., :KV_LORA_RANK])


class MLADecoderLayer(nn.Module):
    """Latent attention and a gated MLP, each with a residual."""

    gate_up_proj: torch.Tensor  # [2 * intermediate_size, hidden_size]
    down_proj: torch.Tensor  # [hidden_size, intermediate_size]

    def __init__(self, config: RunnerConfig, weights: LinearFactory):
        super().__init__()
        self.attn = MLAAttention(config, weights)
        self.register_buffer("gate_up_proj", weights.weight(2 * config.intermediate_size, config.hidden_size))
        self.register_buffer("down_proj", weights.weight(config.hidden_size, config.intermediate_size))

    def forward(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        x = torch.add(x, self.attn(rms_norm(x), positions))
        gate, up = (rms_norm(x) @ self.gate_up_proj.T).chunk(2, dim=-1)
        return torch.add(x, (nn.functional.silu(gate) * up) @ self.down_proj.T)


class MLADecoder(nn.Module):
    """Token ids to hidden states, and hidden states to logits; no adapters."""

    embedding: torch.Tensor  # [vocab_size, hidden_size]
    lm_head: torch.Tensor  # [vocab_size, hidden_size]

    def __init__(self, config: RunnerConfig, weights: LinearFactory):
        super().__init__()
        self.register_buffer("embedding", weights.weight(config.vocab_size, config.hidden_size))
        self.layers = nn.ModuleList(MLADecoderLayer(config, weights) for _ in range(config.num_layers))
        self.register_buffer("lm_head", weights.weight(config.vocab_size, config.hidden_size))

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """[num_tokens] ids and positions -> [num_tokens, hidden_size]."""
        x = self.embed(input_ids)
        for layer in self.layers:
            x = layer(x, positions)
        return rms_norm(x)

    def embed(self, input_ids: torch.Tensor) -> torch.Tensor:
        """[num_tokens] -> [num_tokens, hidden_size]."""
        return self.embedding[input_ids.long()]

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """[num_reqs, hidden_size] -> [num_reqs, vocab_size]."""
        return hidden_states @ self.lm_head.T
