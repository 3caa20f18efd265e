"""A draft model that runs after the target, on the target's attention metadata.

Mirrors `vllm/v1/worker/gpu/spec_decode/autoregressive/` of 0.23.0 to 0.31.0 (`eagle/` before that,
`target_dependent_ar/` since): draft position 0 ("prefill" of the draft) for the batch that the target has
just run, then a decode for each further draft token; both with graphs of their own.
"""

from collections.abc import Callable
from operator import add
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from mrv2lab.graphs.work import Amount, measured
from mrv2lab.runner.block_table import BlockTables
from mrv2lab.runner.config import CUDAGraphMode, RunnerConfig
from mrv2lab.runner.cudagraph_utils import (
    AttentionStatesOfSize,
    BatchExecutionDescriptor,
    CudaGraphManager,
    Prepared,
    attention_state,
)
from mrv2lab.runner.forward_context import AttentionMetadata, set_forward_context
from mrv2lab.runner.input_batch import InputBatch, InputBuffers
from mrv2lab.runner.mla import MLADecoder, MLADecoderLayer
from mrv2lab.runner.model import Decoder, LinearFactory, rms_norm

AttnStates = dict[BatchExecutionDescriptor, AttentionStatesOfSize]


class DraftModel(nn.Module):
    """Next token and the target's hidden state, mixed, through one layer. After EAGLE (arXiv 2401.15077). The
    target's embedding and its output head serve the draft as well.
    """

    fc: Tensor  # [hidden_size, 2 * hidden_size]

    def __init__(self, target: MLADecoder, weights: LinearFactory):
        super().__init__()
        config = weights.config
        self.embed, self.compute_logits = target.embed, target.compute_logits
        self.register_buffer("fc", weights.weight(config.hidden_size, 2 * config.hidden_size))
        self.layer = MLADecoderLayer(config, weights)

    def forward(self, input_ids: Tensor, positions: Tensor, hidden_states: Tensor) -> Tensor:
        """[num_tokens] ids and positions, [num_tokens, hidden_size] of the target -> the same."""
        x = torch.cat([self.embed(input_ids), hidden_states], dim=-1) @ self.fc.T
        return rms_norm(self.layer(x, positions))


class BaseDraft(nn.Module):
    """The target without its adapters, as a draft with a cache of its own: often right for base requests. It
    reads each token where EAGLE's draft does, one position early, and so never sees the first.
    """

    def __init__(self, config: RunnerConfig):
        super().__init__()
        self.decoder = Decoder(config, LinearFactory(config))
        self.run: Callable[..., Any] = self.decoder
        self.compute_logits = self.decoder.compute_logits

    def forward(self, input_ids: Tensor, positions: Tensor, hidden_states: Tensor) -> Tensor:
        """As `DraftModel.forward`; the target's hidden states are not read."""
        hidden: Tensor = self.run(input_ids, positions)
        return hidden


class Proposed(NamedTuple):
    """What a speculator made of one step."""

    token_ids: list[list[int]]  # for each request its drafts
    logits: Tensor  # [num_reqs, vocab_size], of the first draft
    work: Amount


class Speculator:
    """Proposes tokens for each request. Mirrors `AutoRegressiveSpeculator`. Of the target it has config,
    positions and block tables, with caches of its own in the same blocks.
    """

    def __init__(
        self,
        config: RunnerConfig,
        backend: str,
        model: DraftModel | BaseDraft,
        target_input_buffers: InputBuffers,
        target_hidden_states: Tensor,  # [max_num_tokens, hidden_size], where the target leaves its result
        block_tables: BlockTables,
        prepare_attn: Callable[..., AttentionMetadata],  # as `ModelRunner.prepare_attn`
        make_pw_model: Callable[[Decoder, CudaGraphManager], Callable[..., Any]],
    ):
        self.config, self.model = config, model
        self.target_input_buffers, self.target_hidden_states = target_input_buffers, target_hidden_states
        self.block_tables, self.prepare_attn = block_tables, prepare_attn
        device = target_hidden_states.device
        self.input_ids = torch.zeros_like(target_input_buffers.input_ids)
        self.input_buffers = InputBuffers(config.max_num_reqs, config.max_num_reqs, device)  # for decodes
        self.hidden_states = torch.zeros_like(target_hidden_states)
        self.draft_tokens = torch.zeros(config.max_num_reqs, dtype=torch.int64, device=device)  # of a decode
        self.prefill_cudagraph_manager = CudaGraphManager(config, backend)
        self.decode_cudagraph_manager = CudaGraphManager(config, backend, decode_query_len=1)
        # As in vLLM, a decode of the draft has FULL graphs or none.
        is_full = config.cudagraph_mode.decode_mode() is CUDAGraphMode.FULL
        mode = CUDAGraphMode.FULL_DECODE_ONLY if is_full else CUDAGraphMode.NONE
        self.decode_cudagraph_manager.set_mode(mode)
        if config.cudagraph_mode.has_piecewise_cudagraphs() and isinstance(model, BaseDraft):
            model.run = make_pw_model(model.decoder, self.prefill_cudagraph_manager)

    def capture(self, attn_states: AttnStates) -> None:
        """Capture the draft's passes: its prefill for every size that the target has captured, its decode.

        Mirrors `capture` of its two `...SpeculatorCudaGraphManager` (vLLM 0.23.0; one since 0.26.0). Decodes
        have metadata of their own, over a dummy batch of so many requests, one token each.
        """

        def prefill(desc: BatchExecutionDescriptor, warmup: bool) -> Prepared:
            attn_metadata = attention_state(attn_states[desc], warmup=warmup)
            return lambda cg_mode: self._prefill(desc.num_tokens, attn_metadata, cg_mode), attn_metadata

        def decode(desc: BatchExecutionDescriptor, warmup: bool) -> Prepared:
            n = desc.num_tokens
            self.block_tables.prepare_dummy()
            input_batch = InputBatch.make_dummy(n, n, self.input_buffers)
            attn_metadata = self.prepare_attn(input_batch, for_capture=True)
            return lambda cg_mode: self._generate_draft(n, attn_metadata, cg_mode), attn_metadata

        self.attn_states = attn_states  # a graph holds addresses, not tensors
        if self.prefill_cudagraph_manager.use_breakable_cg:
            self.prefill_cudagraph_manager.init_breakable_cg_runner(self.model)
        self.prefill_cudagraph_manager.capture(prefill)
        if self.config.num_speculative_tokens > 1:
            self.decode_cudagraph_manager.capture(decode)

    def propose(
        self,
        input_batch: InputBatch,
        next_token_ids: Tensor,  # [num_tokens], for each token of the batch the one that followed it
        num_rejected: np.ndarray,  # [num_reqs], drafts of each request that the target would not have taken
        batch_desc: BatchExecutionDescriptor,  # how the target has run: the draft's prefill does the same
    ) -> Proposed:
        """Draft tokens for each request of a batch that has just been sampled for."""
        self.input_ids[: len(next_token_ids)].copy_(next_token_ids)
        ends = np.cumsum(input_batch.num_scheduled_tokens) - num_rejected
        last_token_indices = torch.from_numpy(ends - 1).to(self.hidden_states.device)
        attn_metadata = self.prepare_attn(input_batch)  # as in vLLM, the target's serve: it is the same batch
        with measured() as work:
            self.run_model(batch_desc, attn_metadata)
        logits = self.model.compute_logits(self.hidden_states[last_token_indices])
        drafts = [logits.argmax(dim=-1).tolist()]
        with measured() as decodes:
            drafts += self._multi_step_decode(input_batch, num_rejected, drafts[0])
        token_ids = [list(of_request) for of_request in zip(*drafts, strict=True)]
        return Proposed(token_ids, logits, Amount(*map(add, work.amount, decodes.amount)))

    def run_model(self, batch_desc: BatchExecutionDescriptor, attn_metadata: AttentionMetadata) -> None:
        """The draft's prefill, run as the target has run: by a FULL graph, by pieces or eagerly."""
        if batch_desc.cg_mode is CUDAGraphMode.FULL:
            self.prefill_cudagraph_manager.run_fullgraph(batch_desc)
        else:
            self._prefill(batch_desc.num_tokens, attn_metadata, batch_desc.cg_mode)

    def _multi_step_decode(
        self, input_batch: InputBatch, num_rejected: np.ndarray, newest: list[int]
    ) -> list[list[int]]:
        """Further drafts, one decode for each position. The batch's tables and slots are written over."""
        num_reqs, drafts = input_batch.num_reqs, []
        desc = self.decode_cudagraph_manager.dispatch(num_reqs, num_reqs, 1)
        ones = np.ones(num_reqs, int)
        for step in range(1, self.config.num_speculative_tokens):
            seq_lens = input_batch.seq_lens_np - num_rejected + step
            self.input_buffers.copy_from(np.array(newest), seq_lens - 1, ones, seq_lens)
            self.block_tables.prepare(input_batch.idx_mapping_np, input_batch.idx_mapping_np, seq_lens - 1)
            padded = desc.num_tokens, desc.num_reqs or num_reqs
            requests = input_batch.req_ids, input_batch.idx_mapping_np
            batch = InputBatch(*requests, ones, seq_lens, *padded, self.input_buffers)
            if desc.cg_mode is CUDAGraphMode.FULL:
                self.decode_cudagraph_manager.run_fullgraph(desc)
            else:
                self._generate_draft(desc.num_tokens, self.prepare_attn(batch), desc.cg_mode)
            newest = self.draft_tokens[:num_reqs].tolist()
            drafts.append(newest)
        return drafts

    def _prefill(self, num_tokens: int, attn_metadata: AttentionMetadata, cg_mode: CUDAGraphMode) -> None:
        positions = self.target_input_buffers.positions
        self._run_model(self.input_ids, positions, num_tokens, attn_metadata, cg_mode)

    def _generate_draft(self, num_tokens: int, attn_metadata: AttentionMetadata, mode: CUDAGraphMode) -> None:
        buffers = self.input_buffers
        self._run_model(buffers.input_ids, buffers.positions, num_tokens, attn_metadata, mode)
        logits = self.model.compute_logits(self.hidden_states[:num_tokens])
        self.draft_tokens[:num_tokens] = logits.argmax(dim=-1)

    def _run_model(
        self,
        input_ids: Tensor,
        positions: Tensor,
        num_tokens: int,
        attn_metadata: AttentionMetadata,
        cg_mode: CUDAGraphMode,
    ) -> None:
        model_inputs: dict[str, Any] = {
            "input_ids": input_ids[:num_tokens],
            "positions": positions[:num_tokens],
            "hidden_states": self.target_hidden_states[:num_tokens],
        }
        with set_forward_context(attn_metadata):
            if cg_mode is CUDAGraphMode.PIECEWISE:
                hidden = self.prefill_cudagraph_manager.run_pw_graph(self.model, model_inputs)
            else:
                hidden = self.model(**model_inputs)
        self.hidden_states[:num_tokens] = hidden
