"""The tensors a batch is run on. Mirrors `vllm/v1/worker/gpu/input_batch.py`.

`InputBuffers` is the one object that owns every input address a graph may touch. A batch is a set of
slices of it: new values go in, addresses stay.
"""

from dataclasses import InitVar, dataclass, field

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

        Of each token, [num_tokens], id and position; of each request, [num_reqs], the tokens scheduled for it
        and its context, this step included.
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
    """One step's batch, whose values have just been copied into `buffers`. Mirrors `InputBatch`."""

    req_ids: list[str]  # batch index -> request
    idx_mapping_np: np.ndarray  # [num_reqs], batch index -> index in RequestState
    num_scheduled_tokens: np.ndarray  # [num_reqs]
    seq_lens_np: np.ndarray  # [num_reqs], what `seq_lens` holds, for the host
    num_tokens_after_padding: int
    num_reqs_after_padding: int
    buffers: InitVar[InputBuffers]
    num_draft_tokens: InitVar[np.ndarray | int] = 0
    input_ids: torch.Tensor = field(init=False)  # [num_tokens_after_padding]
    positions: torch.Tensor = field(init=False)  # [num_tokens_after_padding]
    query_start_loc: torch.Tensor = field(init=False)  # [num_reqs_after_padding + 1]
    seq_lens: torch.Tensor = field(init=False)  # [num_reqs_after_padding]
    logits_indices: torch.Tensor = field(init=False)  # [num_logits], of requests the last token and drafts
    num_logits: np.ndarray = field(init=False)  # [num_reqs], 1 + drafts to be verified

    def __post_init__(self, buffers: InputBuffers, num_draft_tokens: np.ndarray | int) -> None:
        self.input_ids = buffers.input_ids[: self.num_tokens_after_padding]
        self.positions = buffers.positions[: self.num_tokens_after_padding]
        self.query_start_loc = buffers.query_start_loc[: self.num_reqs_after_padding + 1]
        self.seq_lens = buffers.seq_lens[: self.num_reqs_after_padding]
        self.num_logits = np.ones(len(self.req_ids), int) + num_draft_tokens
        ends = zip(np.cumsum(self.num_scheduled_tokens), self.num_logits, strict=True)
        last_tokens = np.concatenate([np.arange(end - n, end) for end, n in ends])
        self.logits_indices = torch.from_numpy(last_tokens).to(buffers.input_ids.device)

    @property
    def num_reqs(self) -> int:
        return len(self.req_ids)

    @classmethod
    def make_dummy(cls, num_reqs: int, num_tokens: int, buffers: InputBuffers) -> "InputBatch":
        """A batch of zeros, spread evenly over `num_reqs` fresh requests; the last one takes the rest."""
        assert 0 < num_reqs <= num_tokens, f"{num_reqs} requests cannot share {num_tokens} tokens"
        query_lens = np.full(num_reqs, num_tokens // num_reqs)
        query_lens[-1] += num_tokens % num_reqs
        zeros = np.zeros(num_tokens, dtype=np.int64)
        buffers.copy_from(zeros, zeros, query_lens, query_lens)
        req_ids = [f"_dummy_req_{i}" for i in range(num_reqs)]
        return cls(req_ids, np.arange(num_reqs), query_lens, query_lens, num_tokens, num_reqs, buffers)
