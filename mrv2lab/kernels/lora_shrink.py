"""LoRA shrink: `y[slice, token] = scale * A[slice, adapter(token)] @ x[token]` for tokens with an adapter.

Mirrors `vllm/lora/ops/triton_ops/lora_shrink_op.py` (after Punica, arXiv 2310.18547) in what matters
here: tokens are grouped by adapter through metadata tensors on the device, one grid axis runs over
adapters, and a block whose adapter is -1 leaves at once. That exit is on the DEVICE. The host has one
of its own, `if no_lora_flag_cpu.item(): return`, and that one runs only at capture.
"""

import torch
import triton
import triton.language as tl

from mrv2lab.kernels.dual import DualKernel


@DualKernel
def _lora_shrink_kernel(
    x_ptr,  # [num_tokens, hidden_size]
    a_ptr,  # [num_slices, max_loras, rank, hidden_size]
    y_ptr,  # [num_slices, num_tokens, rank]
    token_indices_ptr,  # [num_tokens], sorted by adapter
    num_tokens_per_lora_ptr,  # [max_loras + 1]
    lora_token_start_loc_ptr,  # [max_loras + 2]
    lora_ids_ptr,  # [max_loras + 1]
    scale,
    rank,
    hidden_size,
    a_slice_stride,
    a_lora_stride,
    y_slice_stride,
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
    first = tl.program_id(0) * BLOCK_M
    if first >= num_tokens:
        return
    offsets = first + tl.arange(0, BLOCK_M)
    start = tl.load(lora_token_start_loc_ptr + lora_idx)
    tokens = tl.load(token_indices_ptr + start + offsets, mask=offsets < num_tokens, other=0)

    ranks = tl.arange(0, BLOCK_N)
    x_ptrs = x_ptr + tokens[:, None] * hidden_size
    a_ptrs = a_ptr + slice_id * a_slice_stride + lora_id * a_lora_stride + ranks[None, :] * hidden_size
    sums = tl.full((BLOCK_M, BLOCK_N), 0.0, tl.float32)
    for k in range(0, hidden_size, BLOCK_K):
        ks = k + tl.arange(0, BLOCK_K)
        x = tl.load(x_ptrs + ks[None, :], mask=ks[None, :] < hidden_size, other=0.0)
        a = tl.load(
            a_ptrs + ks[:, None], mask=(ranks[None, :] < rank) & (ks[:, None] < hidden_size), other=0.0
        )
        sums += tl.dot(x, a, input_precision="ieee")

    y_ptrs = y_ptr + slice_id * y_slice_stride + tokens[:, None] * rank + ranks[None, :]
    tl.store(y_ptrs, sums * scale, mask=(offsets[:, None] < num_tokens) & (ranks[None, :] < rank))


def lora_shrink(
    x: torch.Tensor,  # [num_tokens, hidden_size]
    lora_a_stacked: torch.Tensor,  # [num_slices, max_loras, rank, hidden_size], dtype of `x`
    y: torch.Tensor,  # [num_slices, num_tokens, rank] float32, overwritten
    token_indices_sorted_by_lora_ids: torch.Tensor,  # [num_tokens] int32
    num_tokens_per_lora: torch.Tensor,  # [max_loras + 1] int32
    lora_token_start_loc: torch.Tensor,  # [max_loras + 2] int32
    lora_ids: torch.Tensor,  # [max_loras + 1] int32, -1 where there is none
    no_lora_flag_cpu: torch.Tensor,  # [1] bool, host; set: nothing is launched, and `y` stays as it is
    num_active_loras: torch.Tensor,  # [1] int32, host: the grid's third dimension
    scale: float,
) -> None:
    """Project tokens down to the rank of their adapter; rows without an adapter become zero."""
    if no_lora_flag_cpu.item():
        return
    num_slices, _, rank, hidden_size = lora_a_stacked.shape
    y.zero_()
    blocks = triton.cdiv(x.shape[0], 16)
    _lora_shrink_kernel[blocks, num_slices, int(num_active_loras.item())](
        x, lora_a_stacked, y, token_indices_sorted_by_lora_ids, num_tokens_per_lora, lora_token_start_loc,
        lora_ids, scale, rank, hidden_size, *lora_a_stacked.stride()[:2], y.stride(0),
        BLOCK_M=16, BLOCK_N=max(16, triton.next_power_of_2(rank)), BLOCK_K=64,
    )  # fmt: skip
