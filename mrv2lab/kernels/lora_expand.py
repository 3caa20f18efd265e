"""LoRA expand: `y[token, slice] += B[slice, adapter(token)] @ x[slice, token]` for tokens with an adapter.

Mirrors `vllm/lora/ops/triton_ops/lora_expand_op.py` (after Punica, arXiv 2310.18547); the exits are
those of `lora_shrink`.
"""

import torch
import triton
import triton.language as tl

from mrv2lab.kernels.dual import DualKernel


@DualKernel
def _lora_expand_kernel(
    x_ptr,  # [num_slices, num_tokens, rank]
    b_ptr,  # [num_slices, max_loras, slice_size, rank]
    y_ptr,  # [num_tokens, num_slices * slice_size]
    token_indices_ptr,  # [num_tokens], sorted by adapter
    num_tokens_per_lora_ptr,  # [max_loras + 1]
    lora_token_start_loc_ptr,  # [max_loras + 2]
    lora_ids_ptr,  # [max_loras + 1]
    rank,
    slice_size,
    x_slice_stride,
    b_slice_stride,
    b_lora_stride,
    y_token_stride,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    slice_id = tl.program_id(1)
    lora_idx = tl.program_id(2)
    lora_id = tl.load(lora_ids_ptr + lora_idx)
    if lora_id == -1:
        return
    num_tokens = tl.load(num_tokens_per_lora_ptr + lora_idx)
    num_blocks_n = (slice_size + BLOCK_N - 1) // BLOCK_N
    first = (tl.program_id(0) // num_blocks_n) * BLOCK_M
    if first >= num_tokens:
        return
    offsets = first + tl.arange(0, BLOCK_M)
    start = tl.load(lora_token_start_loc_ptr + lora_idx)
    tokens = tl.load(token_indices_ptr + start + offsets, mask=offsets < num_tokens, other=0)

    columns = (tl.program_id(0) % num_blocks_n) * BLOCK_N + tl.arange(0, BLOCK_N)
    ranks = tl.arange(0, BLOCK_K)
    x_ptrs = x_ptr + slice_id * x_slice_stride + tokens[:, None] * rank + ranks[None, :]
    b_ptrs = (
        b_ptr + slice_id * b_slice_stride + lora_id * b_lora_stride + columns[None, :] * rank + ranks[:, None]
    )
    b = tl.load(b_ptrs, mask=(columns[None, :] < slice_size) & (ranks[:, None] < rank), other=0.0)
    x = tl.load(x_ptrs, mask=ranks[None, :] < rank, other=0.0).to(b.dtype)
    sums = tl.dot(x, b, input_precision="ieee")

    y_ptrs = y_ptr + tokens[:, None] * y_token_stride + slice_id * slice_size + columns[None, :]
    mask = (offsets[:, None] < num_tokens) & (columns[None, :] < slice_size)
    y = tl.load(y_ptrs, mask=mask, other=0.0)
    tl.store(y_ptrs, y + sums.to(y.dtype), mask=mask)


def lora_expand(
    x: torch.Tensor,  # [num_slices, num_tokens, rank] float32, from `lora_shrink`
    lora_b_stacked: torch.Tensor,  # [num_slices, max_loras, slice_size, rank]
    y: torch.Tensor,  # [num_tokens, num_slices * slice_size], added to in place; the rest as of `lora_shrink`
    token_indices_sorted_by_lora_ids: torch.Tensor,
    num_tokens_per_lora: torch.Tensor,
    lora_token_start_loc: torch.Tensor,
    lora_ids: torch.Tensor,
    no_lora_flag_cpu: torch.Tensor,
    num_active_loras: torch.Tensor,
) -> None:
    """Project shrunk tokens up and add them to `y`; rows without an adapter stay as they are."""
    if no_lora_flag_cpu.item():
        return
    num_slices, _, slice_size, rank = lora_b_stacked.shape
    block_n = min(64, max(16, triton.next_power_of_2(slice_size)))
    blocks = triton.cdiv(x.shape[1], 16) * triton.cdiv(slice_size, block_n)
    _lora_expand_kernel[blocks, num_slices, int(num_active_loras.item())](
        x, lora_b_stacked, y, token_indices_sorted_by_lora_ids, num_tokens_per_lora, lora_token_start_loc,
        lora_ids, rank, slice_size, x.stride(0), *lora_b_stacked.stride()[:2], y.stride(0),
        BLOCK_M=16, BLOCK_N=block_n, BLOCK_K=max(16, triton.next_power_of_2(rank)),
    )  # fmt: skip
