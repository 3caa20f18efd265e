"""`lora_shrink` and `lora_expand` once more, for speed: same arguments, same results, and a `Tile` beside.

What differs from the plain ones, which are to be read first:

* The grid does not run over adapters. A block finds out which adapter its tokens have by counting through
  `num_tokens_per_lora`, so no block is launched for nothing, and no number of adapters can freeze in a grid.
* A block covers all of a rank where it can, so tokens are read once.
* Shrink splits the hidden size over blocks. The last one to be done adds up what they left and sets the
  counter back for the next launch: no memory is cleared before, and the order of the sum is always the same.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from mrv2lab.kernels.dual import DualKernel


class Tile(NamedTuple):
    """What one block does: tokens, outputs, numbers of the inner sum at a time. And how it is compiled."""

    tokens: int  # a power of two from 16, as the others; or, in shrink, one: without tensor cores
    outputs: int
    inner: int = 128  # of expand at most the rank
    splits: int = 1  # of the inner sum, over as many blocks; of shrink only
    num_warps: int = 4
    num_stages: int = 3
    repeats: int = 1  # tiles of one block of expand, one after the other; where a step takes the whole rank

    def __str__(self) -> str:
        size = f"{self.tokens}x{self.outputs * self.repeats}x{self.inner}"
        parts = f"/{self.splits}" * (self.splits > 1) + f" by {self.outputs}" * (self.repeats > 1)
        return f"{size}{parts} w{self.num_warps} s{self.num_stages}"


@DualKernel
def _lora_shrink_fast_kernel(
    x_ptr,  # [num_tokens, hidden_size]
    a_ptr,  # [num_slices, max_loras, rank, hidden_size]
    y_ptr,  # [num_slices, num_tokens, rank]
    parts_ptr,  # [num_slices, tiles, SPLITS, BLOCK_M, BLOCK_N], of SPLITS > 1 only
    done_ptr,  # [num_slices, tiles] int32, zero before and after
    token_indices_ptr,
    num_tokens_per_lora_ptr,
    lora_token_start_loc_ptr,
    lora_ids_ptr,
    scale,
    zero,  # 0.0, which the compiler does not know
    rank,
    hidden_size,
    a_slice_stride,
    a_lora_stride,
    y_slice_stride,
    GROUPS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    SPLITS: tl.constexpr,
    IS_EVEN: tl.constexpr,
):
    slice_id = tl.program_id(1)
    tile = tl.program_id(0) // SPLITS
    split = tl.program_id(0) % SPLITS
    tiles_n = (rank + BLOCK_N - 1) // BLOCK_N
    block = tile // tiles_n

    lora_id, start, num_tokens, first = -1, 0, 0, 0
    for group in tl.static_range(GROUPS):
        count = tl.load(num_tokens_per_lora_ptr + group)
        blocks = (count + BLOCK_M - 1) // BLOCK_M
        is_mine = (block >= 0) & (block < blocks)
        lora_id = tl.where(is_mine, tl.load(lora_ids_ptr + group), lora_id)
        start = tl.where(is_mine, tl.load(lora_token_start_loc_ptr + group), start)
        num_tokens = tl.where(is_mine, count, num_tokens)
        first = tl.where(is_mine, block * BLOCK_M, first)
        block -= blocks
    if num_tokens == 0:
        return

    offsets = first + tl.arange(0, BLOCK_M)
    is_token = offsets < num_tokens
    tokens = tl.load(token_indices_ptr + start + offsets, mask=is_token, other=0)
    ranks = (tile % tiles_n) * BLOCK_N + tl.arange(0, BLOCK_N)
    is_out = is_token[:, None] & (ranks[None, :] < rank)
    y_ptrs = y_ptr + slice_id * y_slice_stride + tokens[:, None] * rank + ranks[None, :]
    sums = tl.full((BLOCK_M, BLOCK_N), 0.0, tl.float32)
    if lora_id == -1:
        if split == 0:
            tl.store(y_ptrs, sums, mask=is_out)
        return

    ks = split * BLOCK_K + tl.arange(0, BLOCK_K)
    x_ptrs = x_ptr + tokens[:, None].to(tl.int64) * hidden_size + ks[None, :]
    a_ptrs = (
        a_ptr
        + slice_id * a_slice_stride
        + lora_id * a_lora_stride
        + ranks[None, :] * hidden_size
        + ks[:, None]
    )
    is_rank = ranks[None, :] < rank
    zeros = sums + zero
    products = tl.full((BLOCK_K if BLOCK_M == 1 else 1, BLOCK_N), 0.0, tl.float32)
    for k in range(split * BLOCK_K, hidden_size, BLOCK_K * SPLITS):
        if IS_EVEN:
            a = tl.load(a_ptrs, mask=is_rank, other=0.0)
            x = tl.load(x_ptrs)
        else:
            is_k = k + tl.arange(0, BLOCK_K) < hidden_size
            a = tl.load(a_ptrs, mask=is_rank & is_k[:, None], other=0.0)
            x = tl.load(x_ptrs, mask=is_k[None, :], other=0.0)
        if BLOCK_M == 1:
            products += tl.trans(x).to(tl.float32) * a.to(tl.float32)
        else:
            # Tensor cores cut off what they add up, so none of their sums is longer than a block: it
            # starts at a zero that the compiler cannot fold away, and is added with rounding.
            sums += tl.dot(x, a, zeros, input_precision="ieee")
        a_ptrs += BLOCK_K * SPLITS
        x_ptrs += BLOCK_K * SPLITS
    if BLOCK_M == 1:
        sums = tl.reduce(products, 0, tl.standard._sum_combine)[None, :]
    if SPLITS == 1:
        tl.store(y_ptrs, sums * scale, mask=is_out)
    else:
        tile += slice_id * (tl.num_programs(0) // SPLITS)
        within = tl.arange(0, BLOCK_M)[:, None] * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
        mine_ptrs = parts_ptr + tile * SPLITS * BLOCK_M * BLOCK_N + within
        tl.store(mine_ptrs + split * BLOCK_M * BLOCK_N, sums, cache_modifier=".cg")
        tl.debug_barrier()  # all of the block has written before one thread says so
        if tl.atomic_add(done_ptr + tile, 1) == SPLITS - 1:
            total = tl.full((BLOCK_M, BLOCK_N), 0.0, tl.float32)
            for part in tl.static_range(SPLITS):  # unrolled, so that no load waits for another
                total += tl.load(mine_ptrs + part * BLOCK_M * BLOCK_N, cache_modifier=".cg")
            tl.store(y_ptrs, total * scale, mask=is_out)
            tl.store(done_ptr + tile, 0)


@DualKernel
def _lora_expand_fast_kernel(
    x_ptr,  # [num_slices, num_tokens, rank]
    b_ptr,  # [num_slices, max_loras, slice_size, rank]
    y_ptr,  # [num_tokens, num_slices * slice_size]
    token_indices_ptr,
    num_tokens_per_lora_ptr,
    lora_token_start_loc_ptr,
    lora_ids_ptr,
    rank,
    slice_size,
    x_slice_stride,
    b_slice_stride,
    b_lora_stride,
    y_token_stride,
    GROUPS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    REPEATS: tl.constexpr,  # tiles of a block; 1 if it is not whole
    IS_WHOLE: tl.constexpr,  # one step over the ranks
    IS_EVEN: tl.constexpr,
):
    slice_id = tl.program_id(1)
    tiles_n = (slice_size + BLOCK_N * REPEATS - 1) // (BLOCK_N * REPEATS)
    block = tl.program_id(0) // tiles_n

    # As in shrink, word for word: a `DualKernel` calls no function of its own.
    lora_id, start, num_tokens, first = -1, 0, 0, 0
    for group in tl.static_range(GROUPS):
        count = tl.load(num_tokens_per_lora_ptr + group)
        blocks = (count + BLOCK_M - 1) // BLOCK_M
        is_mine = (block >= 0) & (block < blocks)
        lora_id = tl.where(is_mine, tl.load(lora_ids_ptr + group), lora_id)
        start = tl.where(is_mine, tl.load(lora_token_start_loc_ptr + group), start)
        num_tokens = tl.where(is_mine, count, num_tokens)
        first = tl.where(is_mine, block * BLOCK_M, first)
        block -= blocks
    if lora_id == -1:
        return

    columns = (tl.program_id(0) % tiles_n) * BLOCK_N * REPEATS + tl.arange(0, BLOCK_N)
    ranks = tl.arange(0, BLOCK_K)
    b_ptrs = (
        b_ptr + slice_id * b_slice_stride + lora_id * b_lora_stride + columns[None, :] * rank + ranks[:, None]
    )
    offsets = first + tl.arange(0, BLOCK_M)
    is_token = offsets < num_tokens
    tokens = tl.load(token_indices_ptr + start + offsets, mask=is_token, other=0)
    x_ptrs = x_ptr + slice_id * x_slice_stride + tokens[:, None] * rank + ranks[None, :]
    y_ptrs = y_ptr + tokens[:, None].to(tl.int64) * y_token_stride + slice_id * slice_size + columns[None, :]
    if IS_WHOLE:
        x = tl.load(x_ptrs, mask=IS_EVEN | (ranks[None, :] < rank), other=0.0)
        is_in = columns < slice_size
        b = tl.load(b_ptrs, mask=IS_EVEN | (is_in[None, :] & (ranks[:, None] < rank)), other=0.0)
        y = tl.load(y_ptrs, mask=is_token[:, None] & (IS_EVEN | is_in[None, :]), other=0.0)
        for repeat in range(REPEATS):
            # The next ones are on their way while these are worked on.
            y_next, b_next, is_next = y, b, is_in
            if repeat + 1 < REPEATS:
                columns += BLOCK_N
                is_next = columns < slice_size
                b_ptrs += BLOCK_N * rank
                b_next = tl.load(b_ptrs, mask=is_next[None, :] & (ranks[:, None] < rank), other=0.0)
                y_next = tl.load(y_ptrs + BLOCK_N, mask=is_token[:, None] & is_next[None, :], other=0.0)
            sums = y.to(tl.float32) + tl.dot(x.to(b.dtype), b, input_precision="ieee")
            tl.store(y_ptrs, sums.to(y.dtype), mask=is_token[:, None] & (IS_EVEN | is_in[None, :]))
            y_ptrs += BLOCK_N
            y, b, is_in = y_next, b_next, is_next
    else:
        mask = is_token[:, None] & (columns[None, :] < slice_size)
        sums = tl.full((BLOCK_M, BLOCK_N), 0.0, tl.float32)
        for k in range(0, rank, BLOCK_K):
            if IS_EVEN:
                b = tl.load(b_ptrs)
                x = tl.load(x_ptrs)
            else:
                is_rank = k + ranks < rank
                b = tl.load(b_ptrs, mask=(columns[None, :] < slice_size) & is_rank[:, None], other=0.0)
                x = tl.load(x_ptrs, mask=is_rank[None, :], other=0.0)
            sums += tl.dot(x.to(b.dtype), b, input_precision="ieee")
            b_ptrs += BLOCK_K
            x_ptrs += BLOCK_K
        y = tl.load(y_ptrs, mask=mask, other=0.0)  # before the loop it would take registers
        tl.store(y_ptrs, (y.to(tl.float32) + sums).to(y.dtype), mask=mask)


class Splits(NamedTuple):
    """What the blocks of a split sum leave for the last of them, for launches that do not overlap."""

    parts: torch.Tensor  # float32
    done: torch.Tensor  # int32, zero between launches

    @staticmethod
    def make(tile: Tile, lora_a_stacked: torch.Tensor, num_tokens: int, num_groups: int) -> "Splits":
        """Enough for launches of this tile with so many tokens; `num_groups`: as `lora_ids` is long."""
        num_slices, _, rank, _ = lora_a_stacked.shape
        block_n, tiles = _tiled(tile, rank, num_tokens, num_groups)
        num_parts = num_slices * tiles * tile.splits * tile.tokens * block_n if tile.splits > 1 else 0
        device = lora_a_stacked.device
        done = torch.zeros(num_slices * tiles, dtype=torch.int32, device=device)
        return Splits(torch.empty(num_parts, device=device), done)


def _tiled(tile: Tile, rank: int, num_tokens: int, num_groups: int) -> tuple[int, int]:
    """Ranks of a tile of shrink, and how many tiles there are."""
    least = 1 if tile.tokens == 1 else 16
    block_n = min(tile.outputs, max(least, triton.next_power_of_2(rank)))
    return block_n, num_blocks(num_tokens, num_groups, tile.tokens) * triton.cdiv(rank, block_n)


def num_blocks(num_tokens: int, num_groups: int, per_block: int) -> int:
    """The most blocks that tokens of so many adapters fill, however they fall."""
    groups = min(num_groups, num_tokens)
    return (num_tokens - groups) // per_block + groups


def lora_shrink(
    x: torch.Tensor,  # all as of the plain one
    lora_a_stacked: torch.Tensor,
    y: torch.Tensor,
    token_indices_sorted_by_lora_ids: torch.Tensor,
    num_tokens_per_lora: torch.Tensor,
    lora_token_start_loc: torch.Tensor,
    lora_ids: torch.Tensor,
    no_lora_flag_cpu: torch.Tensor,
    scale: float,
    tile: Tile,
    splits: Splits,  # made for this tile and, at least, so many tokens and ranks
) -> None:
    """Project tokens down to the rank of their adapter; rows without an adapter become zero."""
    if no_lora_flag_cpu.item():
        return
    num_slices, _, rank, hidden_size = lora_a_stacked.shape
    block_n, tiles = _tiled(tile, rank, x.shape[0], len(lora_ids))
    num_parts = num_slices * tiles * tile.splits * tile.tokens * block_n * (tile.splits > 1)
    if len(splits.done) < num_slices * tiles or len(splits.parts) < num_parts:
        has, needs = (len(splits.done), len(splits.parts)), (num_slices * tiles, num_parts)
        raise ValueError(f"{has} counters and parts, and the launch needs {needs}; make `Splits` for it")
    _lora_shrink_fast_kernel[tiles * tile.splits, num_slices](
        x, lora_a_stacked, y, *splits, token_indices_sorted_by_lora_ids, num_tokens_per_lora,
        lora_token_start_loc, lora_ids, scale, 0.0, rank, hidden_size,
        *lora_a_stacked.stride()[:2], y.stride(0),
        GROUPS=len(lora_ids), BLOCK_M=tile.tokens, BLOCK_N=block_n, BLOCK_K=tile.inner, SPLITS=tile.splits,
        IS_EVEN=hidden_size % tile.inner == 0, num_warps=tile.num_warps, num_stages=tile.num_stages,
    )  # fmt: skip


def lora_expand(
    x: torch.Tensor,  # all as of the plain one
    lora_b_stacked: torch.Tensor,
    y: torch.Tensor,
    token_indices_sorted_by_lora_ids: torch.Tensor,
    num_tokens_per_lora: torch.Tensor,
    lora_token_start_loc: torch.Tensor,
    lora_ids: torch.Tensor,
    no_lora_flag_cpu: torch.Tensor,
    tile: Tile,
) -> None:
    """Project shrunk tokens up and add them to `y`; rows without an adapter stay as they are."""
    if no_lora_flag_cpu.item():
        return
    num_slices, _, slice_size, rank = lora_b_stacked.shape
    block_n = min(tile.outputs, triton.next_power_of_2(slice_size))
    block_k = min(tile.inner, max(16, triton.next_power_of_2(rank)))
    repeats = tile.repeats if rank <= block_k else 1
    tiles = num_blocks(x.shape[1], len(lora_ids), tile.tokens) * triton.cdiv(slice_size, block_n * repeats)
    _lora_expand_fast_kernel[tiles, num_slices](
        x, lora_b_stacked, y, token_indices_sorted_by_lora_ids, num_tokens_per_lora, lora_token_start_loc,
        lora_ids, rank, slice_size, x.stride(0), *lora_b_stacked.stride()[:2], y.stride(0),
        GROUPS=len(lora_ids), BLOCK_M=tile.tokens, BLOCK_N=block_n, BLOCK_K=block_k,
        REPEATS=repeats, IS_WHOLE=rank <= block_k, IS_EVEN=rank % block_k == 0 and slice_size % block_n == 0,
        num_warps=tile.num_warps, num_stages=tile.num_stages,
    )  # fmt: skip
