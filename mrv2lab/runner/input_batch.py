"""The tensors a batch is run on. Mirrors `vllm/v1/worker/gpu/input_batch.py`.

`InputBuffers` is the one object that owns every input address a graph may touch. A batch is a set of
slices of it: new values go in, addresses stay.
"""

from dataclasses import dataclass

import numpy as np
import torch


class InputBuffers:
    """Persistent inputs, sized for the largest batch. Mirrors `InputBuffers`.

    One set serves all batches in flight, one after the other. (Host memory that vLLM's device reads by itself
    is there once for each batch in flight: 0.23.0, buffer_utils.py:16-60.)
    """

    def __init__(self, max_num_reqs: int, max_num_tokens: int, device: torch.device):
        self.input_ids = torch.zeros(max_num_tokens, dtype=torch.int32, device=device)
        self.positions = torch.zeros(max_num_tokens, dtype=torch.int64, device=device)
        self.query_start_loc = torch.zeros(max_num_reqs + 1, dtype=torch.int32, device=device)
        self.seq_lens = torch.zeros(max_num_reqs, dtype=torch.int32, device=device)

    def copy_from(
        self, input_ids: np.ndarray, positions: np.ndarray, query_lens: np.ndarray, seq_lens: np.ndarray
    ) -> None:
        """Write one batch into the buffers, and behind it what makes padding rows harmless.

        Those are requests without tokens: query_start_loc stays at num_tokens, seq_lens at 0. Tokens and
        positions behind the batch stay as they were, so a padding row computes with left-overs.

        Args:
            input_ids: [num_tokens].
            positions: [num_tokens].
            query_lens: [num_reqs], tokens scheduled for each request.
            seq_lens: [num_reqs], context of each request, this step included.
        """
        self.input_ids[: len(input_ids)].copy_(torch.from_numpy(input_ids))
        self.positions[: len(positions)].copy_(torch.from_numpy(positions))
        _write(self.query_start_loc, np.concatenate([[0], np.cumsum(query_lens)]), padding=len(input_ids))
        _write(self.seq_lens, seq_lens, padding=0)


def _write(buffer: torch.Tensor, values: np.ndarray, padding: int) -> None:
    """Overwrite the whole buffer in place with `values` and then `padding`; one copy to the device."""
    padded = np.full(buffer.shape, padding, dtype=np.int64)
    padded[: len(values)] = values
    buffer.copy_(torch.from_numpy(padded))


@dataclass
class InputBatch:
    """One step's batch. Mirrors `InputBatch`."""

    req_ids: list[str]  # batch index -> request
    idx_mapping_np: np.ndarray  # [num_reqs], batch index -> index in RequestState
    num_scheduled_tokens: np.ndarray  # [num_reqs]
    seq_lens_np: np.ndarray  # [num_reqs], what `seq_lens` holds, for the host
    num_tokens_after_padding: int
    num_reqs_after_padding: int
    input_ids: torch.Tensor  # [num_tokens_after_padding]
    positions: torch.Tensor  # [num_tokens_after_padding]
    query_start_loc: torch.Tensor  # [num_reqs_after_padding + 1]
    seq_lens: torch.Tensor  # [num_reqs_after_padding]
    logits_indices: torch.Tensor  # [num_logits], the last token of each request, with drafts the last ones
    num_logits: np.ndarray  # [num_reqs], 1 + drafts to be verified

    @property
    def num_reqs(self) -> int:
        return len(self.req_ids)

    @classmethod
    def of(
        cls,
        req_ids: list[str],
        idx_mapping_np: np.ndarray,
        num_scheduled_tokens: np.ndarray,
        seq_lens_np: np.ndarray,
        num_tokens_after_padding: int,
        num_reqs_after_padding: int,
        buffers: InputBuffers,
        num_draft_tokens: np.ndarray | int = 0,
    ) -> "InputBatch":
        """The batch whose values have just been copied into `buffers`."""
        ends, num_logits = np.cumsum(num_scheduled_tokens), np.ones(len(req_ids), int) + num_draft_tokens
        last_tokens = np.concatenate([np.arange(e - n, e) for e, n in zip(ends, num_logits, strict=True)])
        return cls(
            req_ids=req_ids,
            idx_mapping_np=idx_mapping_np,
            num_scheduled_tokens=num_scheduled_tokens,
            seq_lens_np=seq_lens_np,
            num_tokens_after_padding=num_tokens_after_padding,
            num_reqs_after_padding=num_reqs_after_padding,
            input_ids=buffers.input_ids[:num_tokens_after_padding],
            positions=buffers.positions[:num_tokens_after_padding],
            query_start_loc=buffers.query_start_loc[: num_reqs_after_padding + 1],
            seq_lens=buffers.seq_lens[:num_reqs_after_padding],
            logits_indices=torch.from_numpy(last_tokens).to(buffers.input_ids.device),
            num_logits=num_logits,
        )

    @classmethod
    def make_dummy(cls, num_reqs: int, num_tokens: int, buffers: InputBuffers) -> "InputBatch":
        """A batch of zeros, spread evenly over `num_reqs` fresh requests; the last one takes the rest."""
        assert 0 < num_reqs <= num_tokens, f"{num_reqs} requests cannot share {num_tokens} tokens"
        query_lens = np.full(num_reqs, num_tokens // num_reqs)
        query_lens[-1] += num_tokens % num_reqs
        zeros = np.zeros(num_tokens, dtype=np.int64)
        buffers.copy_from(zeros, zeros, query_lens, query_lens)
        req_ids = [f"_dummy_req_{i}" for i in range(num_reqs)]
        return cls.of(req_ids, np.arange(num_reqs), query_lens, query_lens, num_tokens, num_reqs, buffers)
