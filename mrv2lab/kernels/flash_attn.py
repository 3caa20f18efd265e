"""Split-KV decode attention of MLA by a plan that is made ahead of time, for each batch.

Mirrors what vLLM's FlashAttention 3 backends do: `get_scheduler_metadata` cuts the pages of each request into
splits before attention is called, a kernel attends split by split, and a combine kernel merges as many
partial results as the plan says. The plan is several vectors in one tensor, each as long as the batch,
rounded up to 4: **where a number lies depends on the batch size**. (FlashAttention 3 has four vectors and a
semaphore, says `v1/attention/backends/flash_attn.py` of vLLM 0.25.1, and other numbers in them.)
"""

import torch
import triton
import triton.language as tl

from mrv2lab.kernels.dual import DualKernel

MAX_NUM_SPLITS = 4  # of one request; upstream: flash_attn_max_num_splits_for_cuda_graph
_NOTHING = tl.constexpr(-1e30)  # logarithm of an empty sum: like -inf, and finite


def round_up(batch_size: int) -> int:
    """Length of one vector of the plan."""
    return -(-batch_size // 4) * 4


def metadata_size(batch_size: int) -> int:
    """Elements of a plan."""
    return 2 * round_up(batch_size)


def get_scheduler_metadata(cache_seqlens: torch.Tensor, page_size: int) -> torch.Tensor:
    """The plan for these lengths; its work runs on the device, and no length is read by the host.

    Args:
        cache_seqlens: [batch_size] int32.

    Returns:
        [metadata_size(batch_size)] int32: the number of splits of each request; behind it the order of work,
        longest request first, each as `request | pages_per_split << 16`.
    """
    batch_size, stride = len(cache_seqlens), round_up(len(cache_seqlens))
    pages = (cache_seqlens + page_size - 1) // page_size
    pages_per_split = ((pages.sum() + MAX_NUM_SPLITS - 1) // MAX_NUM_SPLITS).clamp(min=1)
    metadata = cache_seqlens.new_zeros(metadata_size(batch_size))
    metadata[:batch_size] = (pages + pages_per_split - 1) // pages_per_split
    order = pages.argsort(descending=True, stable=True)
    metadata[stride : stride + batch_size] = order | pages_per_split << 16
    return metadata


@DualKernel
def flash_fwd_splitkv_kernel(
    q_ptr,  # [batch_size, num_heads, LATENT + ROPE]
    k_cache_ptr,  # [num_pages, PAGE, LATENT + ROPE]
    block_table_ptr,  # [batch_size, max_num_pages] int32
    seq_lens_ptr,  # [batch_size] int32
    metadata_ptr,
    partial_ptr,  # [MAX_NUM_SPLITS, batch_size, num_heads, LATENT] float32
    lse_ptr,  # [MAX_NUM_SPLITS, batch_size, num_heads] float32
    softmax_scale,
    batch_size,
    num_heads,
    max_num_pages,
    STRIDE: tl.constexpr,
    PAGE: tl.constexpr,
    LATENT: tl.constexpr,
    ROPE: tl.constexpr,
    BLOCK_H: tl.constexpr,
):
    split = tl.program_id(1)
    work = tl.load(metadata_ptr + STRIDE + tl.program_id(0))
    request, pages_per_split = work & 0xFFFF, work >> 16
    if split >= tl.load(metadata_ptr + request):
        return
    seq_len = tl.load(seq_lens_ptr + request)
    start = split * pages_per_split
    stop = tl.minimum(start + pages_per_split, (seq_len + PAGE - 1) // PAGE)

    heads, latent, rope = tl.arange(0, BLOCK_H), tl.arange(0, LATENT), tl.arange(0, ROPE)
    slots = tl.arange(0, PAGE)
    is_head = heads[:, None] < num_heads
    q_ptrs = q_ptr + (request * num_heads + heads[:, None]) * (LATENT + ROPE)
    q_latent = tl.load(q_ptrs + latent[None, :], mask=is_head, other=0.0)
    q_rope = tl.load(q_ptrs + LATENT + rope[None, :], mask=is_head, other=0.0)
    highest = tl.full((BLOCK_H,), _NOTHING, tl.float32)
    weight = tl.full((BLOCK_H,), 0.0, tl.float32)
    sums = tl.full((BLOCK_H, LATENT), 0.0, tl.float32)
    for page in range(start, stop):
        block = tl.load(block_table_ptr + request * max_num_pages + page)
        k_ptrs = k_cache_ptr + (block * PAGE + slots[:, None]) * (LATENT + ROPE)
        k_latent = tl.load(k_ptrs + latent[None, :])
        k_rope = tl.load(k_ptrs + LATENT + rope[None, :])
        scores = tl.dot(q_latent, tl.trans(k_latent), input_precision="ieee")
        scores += tl.dot(q_rope, tl.trans(k_rope), input_precision="ieee")
        seen = (page * PAGE + slots)[None, :] < seq_len
        scores = tl.where(seen, scores * softmax_scale, _NOTHING)
        new_highest = tl.maximum(highest, tl.reduce(scores, 1, tl.standard._elementwise_max))
        p = tl.where(seen, tl.exp(scores - new_highest[:, None]), 0.0)
        scale = tl.exp(highest - new_highest)
        weight = weight * scale + tl.reduce(p, 1, tl.standard._sum_combine)
        sums = sums * scale[:, None] + tl.dot(p, k_latent, input_precision="ieee")
        highest = new_highest

    rows = (split * batch_size + request) * num_heads + heads
    safe = tl.maximum(weight, 1e-30)
    lse = tl.where(weight > 0, highest + tl.log(safe), _NOTHING)
    tl.store(lse_ptr + rows, lse, mask=heads < num_heads)
    tl.store(partial_ptr + rows[:, None] * LATENT + latent[None, :], sums / safe[:, None], mask=is_head)


@DualKernel
def flash_fwd_combine_kernel(
    partial_ptr,
    lse_ptr,
    metadata_ptr,
    out_ptr,  # [batch_size, num_heads, LATENT]
    batch_size,
    num_heads,
    LATENT: tl.constexpr,
    BLOCK_H: tl.constexpr,
):
    request = tl.program_id(0)
    heads, latent = tl.arange(0, BLOCK_H), tl.arange(0, LATENT)
    is_head = heads[:, None] < num_heads
    highest = tl.full((BLOCK_H,), _NOTHING, tl.float32)
    weight = tl.full((BLOCK_H,), 0.0, tl.float32)
    sums = tl.full((BLOCK_H, LATENT), 0.0, tl.float32)
    for split in range(tl.load(metadata_ptr + request)):
        rows = (split * batch_size + request) * num_heads + heads
        lse = tl.load(lse_ptr + rows, mask=heads < num_heads, other=_NOTHING)
        partial = tl.load(partial_ptr + rows[:, None] * LATENT + latent[None, :], mask=is_head, other=0.0)
        new_highest = tl.maximum(highest, lse)
        scale, share = tl.exp(highest - new_highest), tl.exp(lse - new_highest)
        weight = weight * scale + share
        sums = sums * scale[:, None] + partial * share[:, None]
        highest = new_highest
    out_ptrs = out_ptr + (request * num_heads + heads[:, None]) * LATENT + latent[None, :]
    tl.store(out_ptrs, sums / tl.maximum(weight, 1e-30)[:, None], mask=is_head)


def flash_attn_with_kvcache(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    block_table: torch.Tensor,
    cache_seqlens: torch.Tensor,
    head_dim_v: int,
    scheduler_metadata: torch.Tensor,
    softmax_scale: float,
) -> torch.Tensor:
    """Decode attention: one query a request over its pages, by a plan that must be this batch's.

    Args:
        scheduler_metadata: [metadata_size(batch_size)] int32, from `get_scheduler_metadata`. All others, and
            what is returned, as of `flash_mla.flash_mla_with_kvcache`.
    """
    batch_size, num_heads, head_dim = q.shape
    block_h = max(16, triton.next_power_of_2(num_heads))
    partial = q.new_empty((MAX_NUM_SPLITS, batch_size, num_heads, head_dim_v), dtype=torch.float32)
    lse = q.new_empty((MAX_NUM_SPLITS, batch_size, num_heads), dtype=torch.float32)
    out = q.new_empty((batch_size, num_heads, head_dim_v), dtype=torch.float32)
    flash_fwd_splitkv_kernel[batch_size, MAX_NUM_SPLITS](
        q,
        k_cache,
        block_table,
        cache_seqlens,
        scheduler_metadata,
        partial,
        lse,
        softmax_scale,
        batch_size,
        num_heads,
        block_table.shape[1],
        STRIDE=round_up(batch_size),
        PAGE=k_cache.shape[1],
        LATENT=head_dim_v,
        ROPE=head_dim - head_dim_v,
        BLOCK_H=block_h,
    )
    flash_fwd_combine_kernel[batch_size,](
        partial, lse, scheduler_metadata, out, batch_size, num_heads, LATENT=head_dim_v, BLOCK_H=block_h
    )
    return out
