"""A draft model of one layer that runs after the target, on the target's attention metadata.

Mirrors `vllm/v1/worker/gpu/spec_decode/autoregressive/`: draft position 0 ("prefill" of the draft) for
the batch that the target has just run, with graphs of its own.
"""

from collections.abc import Callable

import torch
from torch import nn

from mrv2lab.graphs.work import Work, measured
from mrv2lab.runner.config import CUDAGraphMode, RunnerConfig
from mrv2lab.runner.cudagraph_utils import (
    AttentionStatesOfSize,
    BatchExecutionDescriptor,
    CudaGraphManager,
    attention_state,
)
from mrv2lab.runner.forward_context import AttentionMetadata, set_forward_context
from mrv2lab.runner.input_batch import InputBuffers
from mrv2lab.runner.mla import MLADecoder, MLADecoderLayer
from mrv2lab.runner.model import LinearFactory, rms_norm

AttnStates = dict[BatchExecutionDescriptor, AttentionStatesOfSize]


class DraftModel(nn.Module):
    """Next token and the target's hidden state, mixed, through one layer. After EAGLE (arXiv 2401.15077)."""

    fc: torch.Tensor  # [hidden_size, 2 * hidden_size]

    def __init__(self, config: RunnerConfig, weights: LinearFactory):
        super().__init__()
        self.register_buffer("fc", weights.weight(config.hidden_size, 2 * config.hidden_size))
        self.layer = MLADecoderLayer(config, weights)

    def forward(self, embedded: torch.Tensor, hidden: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Both [num_tokens, hidden_size] -> the same."""
        x = torch.cat([embedded, hidden], dim=-1) @ self.fc.T
        return rms_norm(self.layer(x, positions))


class PrefillSpeculatorCudaGraphManager(CudaGraphManager):
    """Captures the draft with metadata that the target's capture has kept, or built anew for each pass.

    Mirrors its namesake of vLLM 0.23.0, and from 0.26.0 on `SpeculatorCudaGraphManager`.
    """

    def capture_prefill(
        self, forward_fn: Callable[[int, AttentionMetadata], None], attn_states: AttnStates
    ) -> None:
        """Capture every size.

        Args:
            forward_fn: the draft's pass, given the number of tokens and the metadata.
            attn_states: for each size, what to warm up and to capture with, or how to build that.
        """

        def create_forward_fn(
            desc: BatchExecutionDescriptor, warmup: bool
        ) -> tuple[Callable[[CUDAGraphMode], None], AttentionMetadata]:
            attn_metadata = attention_state(attn_states[desc], warmup=warmup)
            return lambda _cg_mode: forward_fn(desc.num_tokens, attn_metadata), attn_metadata

        self.capture(create_forward_fn)


class Speculator:
    """Proposes one token for each request. Mirrors `AutoRegressiveSpeculator`.

    Args:
        config: sizes, those of the target.
        target: its embedding and its output head serve the draft as well.
        input_buffers: the target's positions.
        target_hidden_states: [max_num_tokens, hidden_size], where the target leaves its result.
    """

    def __init__(
        self,
        config: RunnerConfig,
        backend: str,
        target: MLADecoder,
        input_buffers: InputBuffers,
        target_hidden_states: torch.Tensor,
        weights: LinearFactory,
    ):
        self.target, self.input_buffers = target, input_buffers
        self.target_hidden_states = target_hidden_states
        self.model = DraftModel(config, weights).to(target_hidden_states.device)
        self.input_ids = torch.zeros_like(input_buffers.input_ids)
        self.hidden_states = torch.zeros_like(target_hidden_states)
        self.prefill_cudagraph_manager = PrefillSpeculatorCudaGraphManager(config, backend)

    def capture(self, attn_states: AttnStates) -> None:
        """Capture the draft's pass for every size that the target has captured."""
        self.attn_states = attn_states  # a graph holds addresses, not tensors
        self.prefill_cudagraph_manager.capture_prefill(self._prefill, attn_states)

    def propose(
        self,
        next_token_ids: torch.Tensor,
        batch_desc: BatchExecutionDescriptor,
        attn_metadata: AttentionMetadata,
        logits_indices: torch.Tensor,
    ) -> tuple[torch.Tensor, Work]:
        """Logits of the draft token of each request, and what was done for the draft's pass.

        Args:
            next_token_ids: [num_tokens], for each token of the batch the one that followed it.
            batch_desc: how the target has run; the draft runs the same way.
            attn_metadata: of this batch; only an eager pass reads it.
            logits_indices: [num_reqs], the last token of each request.

        Returns:
            [num_reqs, vocab_size] and the work.
        """
        self.input_ids[: len(next_token_ids)].copy_(next_token_ids)
        with measured() as work:
            self.run_model(batch_desc, attn_metadata)
        return self.target.compute_logits(self.hidden_states[logits_indices]), work

    def run_model(self, batch_desc: BatchExecutionDescriptor, attn_metadata: AttentionMetadata) -> None:
        """Bring the draft's hidden states up to date, as the target has run: by a graph or eagerly."""
        if batch_desc.cg_mode is CUDAGraphMode.NONE:
            self._prefill(batch_desc.num_tokens, attn_metadata)
        else:
            self.prefill_cudagraph_manager.run_fullgraph(batch_desc)

    def _prefill(self, num_tokens: int, attn_metadata: AttentionMetadata) -> None:
        embedded = self.target.embedding[self.input_ids[:num_tokens].long()]
        positions = self.input_buffers.positions[:num_tokens]
        with set_forward_context(attn_metadata):
            hidden = self.model(embedded, self.target_hidden_states[:num_tokens], positions)
        self.hidden_states[:num_tokens] = hidden
