"""Split-KV decode attention of MLA, with a plan that is made lazily, on first use.

Mirrors `vllm/third_party/flashmla/flash_mla_interface.py` and its three kernels: a planner spreads the
pages of all requests evenly over a fixed number of parts, the main kernel works off one part in each
program and leaves partial results, a combine kernel merges them. Whether the planner is launched is a
decision of the HOST, made where vLLM has C++ (`dense_decode_fwd`): it is, if the plan that was passed is
None. `have_initialized` goes up in the same call, and decides only how the arguments are checked.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from mrv2lab.kernels.dual import DualKernel

NUM_SM_PARTS = 4  # upstream: the number of multiprocessors, shared out
_NOTHING = tl.constexpr(-1e30)  # logarithm of an empty sum: like -inf, and finite


@dataclass
class FlashMLASchedMeta:
    """The plan of one batch, empty until the first call. Mirrors its namesake.

    It may serve several calls, but only while the lengths stay what they were when it was made.
    """

    have_initialized: bool = False  # a call has noted its sizes in `config`
    config: tuple[int, int, int] | None = None  # batch_size, num_heads, page_size
    tile_scheduler_metadata: torch.Tensor | None = None  # [NUM_SM_PARTS, 5] int32
    num_splits: torch.Tensor | None = None  # [batch_size + 1] int32, running sum


@DualKernel
def get_mla_metadata_kernel(
    seq_lens_ptr,  # [batch_size] int32
    parts_ptr,  # [NUM_SM_PARTS, 5]: first request, its first page, last request, its end page, first split
    num_splits_ptr,  # [batch_size + 1]
    batch_size,
    NUM_PARTS: tl.constexpr,
    PAGE: tl.constexpr,
):
    part = tl.program_id(0)
    total = 0
    for request in range(batch_size):
        total += (tl.load(seq_lens_ptr + request) + PAGE - 1) // PAGE
    share = tl.maximum((total + NUM_PARTS - 1) // NUM_PARTS, 1)
    begin = tl.minimum(part * share, total)
    end = tl.minimum(begin + share, total)

    before, splits = 0, 0  # pages and splits of the requests before this one
    begin_request, begin_page, end_request, end_page, begin_split = batch_size, 0, -1, 0, 0
    tl.store(num_splits_ptr, 0)
    for request in range(batch_size):
        pages = (tl.load(seq_lens_ptr + request) + PAGE - 1) // PAGE
        is_first = (begin >= before) & (begin < before + pages)
        is_last = (end > before) & (end <= before + pages)
        begin_request = tl.where(is_first, request, begin_request)
        begin_page = tl.where(is_first, begin - before, begin_page)
        begin_split = tl.where(is_first, part - before // share, begin_split)
        end_request = tl.where(is_last, request, end_request)
        end_page = tl.where(is_last, end - before, end_page)
        splits += tl.where(pages > 0, (before + pages - 1) // share - before // share + 1, 0)
        before += pages
        tl.store(num_splits_ptr + request + 1, splits)

    tl.store(parts_ptr + part * 5 + 0, begin_request)
    tl.store(parts_ptr + part * 5 + 1, begin_page)
    tl.store(parts_ptr + part * 5 + 2, end_request)
    tl.store(parts_ptr + part * 5 + 3, end_page)
    tl.store(parts_ptr + part * 5 + 4, begin_split)


@DualKernel
def flash_fwd_splitkv_mla_kernel(
    q_ptr,  # [batch_size, num_heads, LATENT + ROPE]
    k_cache_ptr,  # [num_pages, PAGE, LATENT + ROPE]
    block_table_ptr,  # [batch_size, max_num_pages] int32
    seq_lens_ptr,  # [batch_size] int32
    parts_ptr,
    num_splits_ptr,
    partial_ptr,  # [batch_size + NUM_SM_PARTS, num_heads, LATENT] float32
    lse_ptr,  # [batch_size + NUM_SM_PARTS, num_heads] float32
    softmax_scale,
    num_heads,
    max_num_pages,
    PAGE: tl.constexpr,
    LATENT: tl.constexpr,
    ROPE: tl.constexpr,
    BLOCK_H: tl.constexpr,
):
    part = parts_ptr + tl.program_id(0) * 5
    begin_request, begin_page = tl.load(part), tl.load(part + 1)
    end_request, end_page, begin_split = tl.load(part + 2), tl.load(part + 3), tl.load(part + 4)

    heads, latent, rope = tl.arange(0, BLOCK_H), tl.arange(0, LATENT), tl.arange(0, ROPE)
    slots = tl.arange(0, PAGE)
    is_head = heads[:, None] < num_heads
    for request in range(begin_request, end_request + 1):
        seq_len = tl.load(seq_lens_ptr + request)
        start = tl.where(request == begin_request, begin_page, 0)
        stop = tl.where(request == end_request, end_page, (seq_len + PAGE - 1) // PAGE)
        split = tl.load(num_splits_ptr + request) + tl.where(request == begin_request, begin_split, 0)

        q_ptrs = q_ptr + (request * num_heads + heads[:, None]) * (LATENT + ROPE)
        q_latent = tl.load(q_ptrs + latent[None, :], mask=is_head, other=0.0)
        q_rope = tl.load(q_ptrs + LATENT + rope[None, :], mask=is_head, other=0.0)
        highest = tl.full((BLOCK_H,), _NOTHING, tl.float32)
        weight = tl.full((BLOCK_H,), 0.0, tl.float32)
        sums = tl.full((BLOCK_H, LATENT), 0.0, tl.float32)
        for page in range(start, stop):
            block = tl.load(block_table_ptr + request * max_num_pages + page)
            k_ptrs = k_cache_ptr + (block * PAGE + slots[:, None]) * (LATENT + ROPE)
            k_latent = tl.load(k_ptrs + latent[None, :])  # keys and values at once: that is MLA
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

        rows = split * num_heads + heads
        safe = tl.maximum(weight, 1e-30)
        lse = tl.where(weight > 0, highest + tl.log(safe), _NOTHING)
        tl.store(lse_ptr + rows, lse, mask=heads < num_heads)
        tl.store(partial_ptr + rows[:, None] * LATENT + latent[None, :], sums / safe[:, None], mask=is_head)


@DualKernel
def flash_fwd_mla_combine_kernel(
    partial_ptr,
    lse_ptr,
    num_splits_ptr,
    out_ptr,  # [batch_size, num_heads, LATENT]
    num_heads,
    LATENT: tl.constexpr,
    BLOCK_H: tl.constexpr,
):
    request = tl.program_id(0)
    first = tl.load(num_splits_ptr + request)
    end = tl.load(num_splits_ptr + request + 1)
    heads, latent = tl.arange(0, BLOCK_H), tl.arange(0, LATENT)
    is_head = heads[:, None] < num_heads
    highest = tl.full((BLOCK_H,), _NOTHING, tl.float32)
    weight = tl.full((BLOCK_H,), 0.0, tl.float32)
    sums = tl.full((BLOCK_H, LATENT), 0.0, tl.float32)
    for split in range(first, end):
        rows = split * num_heads + heads
        lse = tl.load(lse_ptr + rows, mask=heads < num_heads, other=_NOTHING)
        partial = tl.load(partial_ptr + rows[:, None] * LATENT + latent[None, :], mask=is_head, other=0.0)
        new_highest = tl.maximum(highest, lse)
        scale, share = tl.exp(highest - new_highest), tl.exp(lse - new_highest)
        weight = weight * scale + share
        sums = sums * scale[:, None] + partial * share[:, None]
        highest = new_highest
    out_ptrs = out_ptr + (request * num_heads + heads[:, None]) * LATENT + latent[None, :]
    tl.store(out_ptrs, sums / tl.maximum(weight, 1e-30)[:, None], mask=is_head)


def flash_mla_with_kvcache(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    block_table: torch.Tensor,
    cache_seqlens: torch.Tensor,
    head_dim_v: int,
    sched_meta: FlashMLASchedMeta,
    softmax_scale: float,
) -> torch.Tensor:
    """Decode attention: one query a request over its pages. Mirrors its namesake.

    Args:
        q: [batch_size, num_heads, head_dim_v + rope_dim].
        k_cache: [num_pages, page_size, head_dim_v + rope_dim]; the first `head_dim_v` of a row are also
            its value.
        block_table: [batch_size, max_num_pages] int32.
        cache_seqlens: [batch_size] int32; 0 for a padding row, whose output is 0.
        head_dim_v: width of the latent part, a power of two.
        sched_meta: the plan; made now if it holds none.
        softmax_scale: factor on the scores.

    Returns:
        [batch_size, num_heads, head_dim_v] float32.

    Raises:
        AssertionError: the metadata has served a batch of other sizes.
    """
    config = (q.shape[0], q.shape[1], k_cache.shape[1])
    if not sched_meta.have_initialized:
        sched_meta.have_initialized, sched_meta.config = True, config
    else:
        assert sched_meta.config == config, f"sched_meta is for {sched_meta.config}, this call is {config}"
    out, sched_meta.tile_scheduler_metadata, sched_meta.num_splits = dense_decode_fwd(
        q,
        k_cache,
        head_dim_v,
        cache_seqlens,
        block_table,
        softmax_scale,
        sched_meta.tile_scheduler_metadata,
        sched_meta.num_splits,
    )
    return out


def dense_decode_fwd(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    head_dim_v: int,
    cache_seqlens: torch.Tensor,
    block_table: torch.Tensor,
    softmax_scale: float,
    tile_scheduler_metadata: torch.Tensor | None,
    num_splits: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """What is an op in C++ in vLLM: plan if no plan is passed, then attend by it. Shapes as above.

    Returns:
        The result, and the plan that it followed.
    """
    batch_size, num_heads, head_dim = q.shape
    page_size = k_cache.shape[1]
    if tile_scheduler_metadata is None:
        tile_scheduler_metadata = cache_seqlens.new_empty(NUM_SM_PARTS, 5)
        num_splits = cache_seqlens.new_empty(batch_size + 1)
        get_mla_metadata_kernel[NUM_SM_PARTS,](
            cache_seqlens,
            tile_scheduler_metadata,
            num_splits,
            batch_size,
            NUM_PARTS=NUM_SM_PARTS,
            PAGE=page_size,
        )
    assert num_splits is not None  # both or none
    block_h = max(16, triton.next_power_of_2(num_heads))
    partial = q.new_empty((batch_size + NUM_SM_PARTS, num_heads, head_dim_v), dtype=torch.float32)
    lse = q.new_empty((batch_size + NUM_SM_PARTS, num_heads), dtype=torch.float32)
    out = q.new_empty((batch_size, num_heads, head_dim_v), dtype=torch.float32)
    flash_fwd_splitkv_mla_kernel[NUM_SM_PARTS,](
        q,
        k_cache,
        block_table,
        cache_seqlens,
        tile_scheduler_metadata,
        num_splits,
        partial,
        lse,
        softmax_scale,
        num_heads,
        block_table.shape[1],
        PAGE=page_size,
        LATENT=head_dim_v,
        ROPE=head_dim - head_dim_v,
        BLOCK_H=block_h,
    )
    flash_fwd_mla_combine_kernel[batch_size,](
        partial, lse, num_splits, out, num_heads, LATENT=head_dim_v, BLOCK_H=block_h
    )
    return out, tile_scheduler_metadata, num_splits


def flash_mla_reference(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    block_table: torch.Tensor,
    cache_seqlens: torch.Tensor,
    head_dim_v: int,
    softmax_scale: float,
) -> torch.Tensor:
    """The same in float64, request by request, with no plan at all. Shapes as in `flash_mla_with_kvcache`."""
    out = q.new_zeros(*q.shape[:2], head_dim_v, dtype=torch.float64)
    for request, seq_len in enumerate(cache_seqlens.tolist()):
        if seq_len:
            k = k_cache[block_table[request].long()].flatten(0, 1)[:seq_len].double()
            weights = (softmax_scale * q[request].double() @ k.T).softmax(dim=-1)
            out[request] = weights @ k[:, :head_dim_v]
    return out
