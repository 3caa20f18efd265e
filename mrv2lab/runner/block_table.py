"""Which KV cache blocks belong to which request. Mirrors `vllm/v1/worker/gpu/block_table.py`."""

import numpy as np
import torch

from mrv2lab.runner.config import RunnerConfig

PAD_SLOT_ID = -1  # a token whose key and value nobody keeps
NULL_BLOCK = 0  # never lent: padding rows of a block table point here


class BlockTables:
    """Block ids by request, and the persistent tensors attention reads. Mirrors `BlockTables`."""

    def __init__(self, config: RunnerConfig, device: torch.device):
        self.block_size, shape = config.block_size, (config.max_num_reqs, config.max_num_blocks)
        self.block_ids = np.full(shape, NULL_BLOCK)
        self.input_block_table = torch.zeros(shape, dtype=torch.int32, device=device)
        num_slots = (config.max_num_tokens,)
        self.slot_mapping = torch.full(num_slots, PAD_SLOT_ID, dtype=torch.int64, device=device)

    def set_block_ids(self, req_index: int, block_ids: list[int]) -> None:
        """Give a request its blocks, in order of position."""
        self.block_ids[req_index] = NULL_BLOCK
        self.block_ids[req_index, : len(block_ids)] = block_ids

    def prepare(self, idx_mapping: np.ndarray, req_of_token: np.ndarray, positions: np.ndarray) -> None:
        """Write block table and slots of one batch into the persistent tensors. `idx_mapping`: [num_reqs],
        batch index -> request index. Of each token, [num_tokens], the request's index and the position there.
        """
        table = np.full(self.input_block_table.shape, NULL_BLOCK)
        table[: len(idx_mapping)] = self.block_ids[idx_mapping]
        self.input_block_table.copy_(torch.from_numpy(table))

        slots = np.full(self.slot_mapping.shape, PAD_SLOT_ID)
        blocks = self.block_ids[req_of_token, positions // self.block_size]
        slots[: len(positions)] = blocks * self.block_size + positions % self.block_size
        self.slot_mapping.copy_(torch.from_numpy(slots))

    def prepare_dummy(self) -> None:
        """Nobody keeps what a dummy batch computes. The block table still holds the rows of the step before.
        Mirrors `get_dummy_slot_mappings`, and `get_dummy_block_tables`, which writes nothing.
        """
        self.slot_mapping.fill_(PAD_SLOT_ID)
