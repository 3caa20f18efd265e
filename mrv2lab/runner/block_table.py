"""Which KV cache blocks belong to which request. Mirrors `vllm/v1/worker/gpu/block_table.py`."""

import numpy as np
import torch

PAD_SLOT_ID = -1  # a token whose key and value nobody keeps
NULL_BLOCK = 0  # never lent: padding rows of a block table point here


class BlockTables:
    """Block ids by request, and the persistent tensors attention reads. Mirrors `BlockTables`."""

    def __init__(
        self,
        block_size: int,
        max_num_reqs: int,
        max_num_blocks: int,
        max_num_tokens: int,
        device: torch.device,
    ):
        self.block_size = block_size
        self.block_ids = np.full((max_num_reqs, max_num_blocks), NULL_BLOCK)
        self.input_block_table = torch.zeros(max_num_reqs, max_num_blocks, dtype=torch.int32, device=device)
        self.slot_mapping = torch.full((max_num_tokens,), PAD_SLOT_ID, dtype=torch.int64, device=device)

    def set_block_ids(self, req_index: int, block_ids: list[int]) -> None:
        """Give a request its blocks, in order of position."""
        self.block_ids[req_index] = NULL_BLOCK
        self.block_ids[req_index, : len(block_ids)] = block_ids

    def prepare(self, idx_mapping: np.ndarray, req_of_token: np.ndarray, positions: np.ndarray) -> None:
        """Write block table and slots of one batch into the persistent tensors.

        Args:
            idx_mapping: [num_reqs], batch index -> request index.
            req_of_token: [num_tokens], request index of each token.
            positions: [num_tokens], position of each token in its request.
        """
        table = np.full(self.input_block_table.shape, NULL_BLOCK)
        table[: len(idx_mapping)] = self.block_ids[idx_mapping]
        self.input_block_table.copy_(torch.from_numpy(table))

        blocks = self.block_ids[req_of_token, positions // self.block_size]
        self.write_slots(blocks * self.block_size + positions % self.block_size)

    def write_slots(self, slots: np.ndarray) -> None:
        """Bring [num_tokens] slots to the device, and none for the rows of padding behind them."""
        self.slot_mapping[: len(slots)].copy_(torch.from_numpy(slots))
        self.slot_mapping[len(slots) :].fill_(PAD_SLOT_ID)

    def prepare_dummy(self) -> None:
        """Nobody keeps what a dummy batch computes. The block table still holds the rows of the step before.

        Mirrors `get_dummy_slot_mappings`, and `get_dummy_block_tables`, which writes nothing.
        """
        self.slot_mapping.fill_(PAD_SLOT_ID)
