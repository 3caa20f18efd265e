"""Slots of a batch's tokens, and the moment at which a step begins."""

from collections.abc import Callable
from dataclasses import dataclass
from types import MethodType
from typing import Any

import numpy as np
import torch

from mrv2lab.runner.block_table import PAD_SLOT_ID, BlockTables
from mrv2lab.runner.config import RunnerConfig

_NUM_BUFFERS = 3

Parts = dict[str, Callable[..., Any]]  # by seam


@dataclass
class StepState:
    """What the host knows of the batch that is being run. Shared by the parts of one engine."""

    is_dummy: bool = True  # the batch is one of warm-up or capture; nobody keeps what it computes
    has_context: bool = False  # a layer has already worked out where this batch's context lies

    def start(self) -> None:
        """A batch of requests begins."""
        self.is_dummy = self.has_context = False


class SteppedBlockTables(BlockTables):
    """As `BlockTables`; tells the other parts whether a batch is a dummy."""

    def __init__(self, config: RunnerConfig, device: torch.device, step: StepState, parts: Parts):
        super().__init__(config, device)
        self.step, self.turn = step, 0
        others = [torch.full_like(self.slot_mapping, PAD_SLOT_ID) for _ in range(_NUM_BUFFERS - 1)]
        self.slot_mappings = [self.slot_mapping, *others]
        self.write_slots = MethodType(parts["block_table.write_slots"], self)

    def prepare(self, idx_mapping: np.ndarray, req_of_token: np.ndarray, positions: np.ndarray) -> None:
        """Write block table and slots of one batch. Arguments as in `BlockTables.prepare`."""
        self.step.start()
        table = np.zeros(self.input_block_table.shape, dtype=np.int64)
        table[: len(idx_mapping)] = self.block_ids[idx_mapping]
        self.input_block_table.copy_(torch.from_numpy(table))
        blocks = self.block_ids[req_of_token, positions // self.block_size]
        self.write_slots(blocks * self.block_size + positions % self.block_size)

    def prepare_dummy(self) -> None:
        """Nobody keeps what a dummy batch computes."""
        self.step.is_dummy = True
        super().prepare_dummy()


# ---- block_table.write_slots ----


def write_slots_to_the_end(self: SteppedBlockTables, slots: np.ndarray) -> None:
    """Bring [num_tokens] slots to the device."""
    self.slot_mapping[: len(slots)].copy_(torch.from_numpy(slots))
    self.slot_mapping[len(slots) :].fill_(PAD_SLOT_ID)


def write_slots_of_tokens(self: SteppedBlockTables, slots: np.ndarray) -> None:
    """Bring [num_tokens] slots to the device."""
    self.slot_mapping[: len(slots)].copy_(torch.from_numpy(slots))


def write_slots_in_turn(self: SteppedBlockTables, slots: np.ndarray) -> None:
    """Bring [num_tokens] slots to the device, beside those that earlier steps may still read."""
    self.turn = (self.turn + 1) % len(self.slot_mappings)
    self.slot_mapping = self.slot_mappings[self.turn]
    self.slot_mapping[: len(slots)].copy_(torch.from_numpy(slots))
    self.slot_mapping[len(slots) :].fill_(PAD_SLOT_ID)
