"""The persistent inputs, written through staging memory of the host."""

from types import MethodType

import numpy as np
import torch

from mrv2lab.mystery.engine.block_table import Parts
from mrv2lab.mystery.engine.rotary_embedding import RotaryEmbedding
from mrv2lab.runner.config import RunnerConfig
from mrv2lab.runner.input_batch import InputBuffers
from mrv2lab.runner.input_batch import _write as write


class StagedInputBuffers(InputBuffers):
    """As `InputBuffers`; lengths pass through `staged_seq_lens`, which lies in host memory."""

    def __init__(self, config: RunnerConfig, rotary_emb: RotaryEmbedding, parts: Parts):
        super().__init__(config.max_num_reqs, config.max_num_tokens, rotary_emb.device)
        self.rotary_emb = rotary_emb
        self.staged_seq_lens = np.zeros(config.max_num_reqs, dtype=np.int32)
        self.spare_positions = torch.zeros_like(self.positions)
        self.write_positions = MethodType(parts["input_batch.write_positions"], self)
        self.write_seq_lens = MethodType(parts["input_batch.write_seq_lens"], self)

    def copy_from(
        self, input_ids: np.ndarray, positions: np.ndarray, query_lens: np.ndarray, seq_lens: np.ndarray
    ) -> None:
        """Write one batch into the buffers and pad the rest. Arguments as in `InputBuffers.copy_from`."""
        self.rotary_emb.cover(int(positions.max()) + 1)
        write(self.input_ids, input_ids, padding=0)
        write(self.query_start_loc, np.concatenate([[0], np.cumsum(query_lens)]), padding=len(input_ids))
        self.write_positions(positions)
        self.write_seq_lens(seq_lens)


# ---- input_batch.write_positions ----


def write_positions_in_place(self: StagedInputBuffers, positions: np.ndarray) -> None:
    """Bring [num_tokens] positions to the device."""
    write(self.positions, positions, padding=0)


def write_positions_in_turn(self: StagedInputBuffers, positions: np.ndarray) -> None:
    """Bring [num_tokens] positions to the device, where the step before may still read the others."""
    self.positions, self.spare_positions = self.spare_positions, self.positions
    write(self.positions, positions, padding=0)


# ---- input_batch.write_seq_lens ----


def write_seq_lens_staged(self: StagedInputBuffers, seq_lens: np.ndarray) -> None:
    """Bring [num_reqs] lengths to the device; 0 for padding."""
    self.staged_seq_lens[:] = 0
    self.staged_seq_lens[: len(seq_lens)] = seq_lens
    self.seq_lens.copy_(torch.from_numpy(self.staged_seq_lens))


def write_seq_lens_early(self: StagedInputBuffers, seq_lens: np.ndarray) -> None:
    """Bring [num_reqs] lengths to the device; 0 for padding. The copy is begun first, as it takes longest."""
    self.seq_lens.copy_(torch.from_numpy(self.staged_seq_lens))
    self.staged_seq_lens[:] = 0
    self.staged_seq_lens[: len(seq_lens)] = seq_lens
