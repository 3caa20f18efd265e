"""Illegal memory accesses of the new model runner after sleep and wake-up. A kernel finds the block tables
of all KV cache groups by a tensor of their addresses, which lay in the memory pool of the cache. A deep
sleep throws away what is in that pool; the address of the tensor stays good, its contents do not. Repaired
by filling it again, in place, at wake-up.
"""

from types import SimpleNamespace

import torch
import triton  # the harness has imported mrv2lab before: without a GPU kernels are interpreted
import triton.language as tl

PROJECT = "vLLM"
LINK = "https://github.com/vllm-project/vllm/pull/40648"
MECHANISM = "pointer-table"
CAUSE = "block_table_ptrs"
LINE = "block_table = tl.load(block_table_ptrs + group).to(tl.pointer_type(tl.int64))"
EXECUTORS = ("emulated", "cuda")

GROUPS, REQUESTS, BLOCKS = 2, 4, 8


@triton.jit
def _gather_block_tables(
    block_table_ptrs, idx_mapping, out, tables, REQUESTS: tl.constexpr, BLOCKS: tl.constexpr
):
    # `tables` is where the addresses lead to: the emulator lets a kernel touch its arguments only.
    group, request = tl.program_id(0), tl.program_id(1)
    block_table = tl.load(block_table_ptrs + group).to(tl.pointer_type(tl.int64))
    row, columns = tl.load(idx_mapping + request), tl.arange(0, BLOCKS)
    blocks = tl.load(block_table + row * BLOCKS + columns)
    tl.store(out + (group * REQUESTS + request) * BLOCKS + columns, blocks)


class BlockTables:
    """A table for each group, and their addresses for kernels."""

    def __init__(self, device: torch.device):
        self.tables = torch.zeros(GROUPS, REQUESTS, BLOCKS, dtype=torch.int64, device=device)
        self.block_table_ptrs = torch.zeros(GROUPS, dtype=torch.int64, device=device)
        self.idx_mapping = torch.arange(REQUESTS, device=device)
        self.gathered = torch.zeros(GROUPS, REQUESTS, BLOCKS, dtype=torch.int64, device=device)
        self.init_layout_tensors()

    def init_layout_tensors(self) -> None:
        self.block_table_ptrs.copy_(torch.tensor([table.data_ptr() for table in self.tables]))

    def gather(self) -> torch.Tensor:
        _gather_block_tables[(GROUPS, REQUESTS)](
            self.block_table_ptrs, self.idx_mapping, self.gathered, self.tables, REQUESTS, BLOCKS
        )
        return self.gathered


def program(fixed: bool, device: torch.device) -> SimpleNamespace:
    block_tables = BlockTables(device)
    numbers = torch.Generator().manual_seed(0)

    def vary() -> None:
        block_tables.block_table_ptrs.zero_()  # sleep: the pool's memory goes, other memory comes
        if fixed:
            block_tables.init_layout_tensors()
        block_tables.tables.copy_(torch.randint(0, 99, (GROUPS, REQUESTS, BLOCKS), generator=numbers))
        block_tables.idx_mapping.copy_(torch.randperm(REQUESTS, generator=numbers))

    return SimpleNamespace(step=block_tables.gather, vary=vary, block_tables=block_tables)
