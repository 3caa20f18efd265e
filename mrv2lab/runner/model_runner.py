"""Runs one batch after another: `dummy_run -> capture_model -> execute_model -> sample`.

Mirrors `GPUModelRunner` in `vllm/v1/worker/gpu/model_runner.py`, on one GPU. A step's order is vLLM's in
outline. There two calls make it, `execute_model` and `sample_tokens`, and some names differ:
`_update_states` is four methods there, `prepare_inputs` here is `prepare_inputs`, `prepare_attn` and
`_set_active_loras` there, and `prepare_attn` here is the model state's.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from mrv2lab import progress
from mrv2lab.errors import BadInput
from mrv2lab.graphs import device_of, resolve
from mrv2lab.graphs.breakable import eager_break_during_capture
from mrv2lab.graphs.work import Amount, Work, measured
from mrv2lab.kernels.flash_mla import FlashMLASchedMeta
from mrv2lab.runner.attention import min_cg_backend, uniform_query_len
from mrv2lab.runner.block_table import BlockTables
from mrv2lab.runner.config import MLA_BACKENDS, CUDAGraphMode, RunnerConfig
from mrv2lab.runner.cudagraph_utils import (
    AttentionStatesOfSize,
    BatchExecutionDescriptor,
    CudaGraphManager,
    Prepared,
    attention_state,
    dummy_num_reqs,
    get_uniform_token_count,
    resolve_cudagraph_mode_and_sizes,
)
from mrv2lab.runner.dp_utils import DPGroup, dispatch_cg_and_sync_dp
from mrv2lab.runner.forward_context import AttentionMetadata, set_forward_context
from mrv2lab.runner.input_batch import InputBatch, InputBuffers
from mrv2lab.runner.lora import LoRAModelManager
from mrv2lab.runner.lora_utils import get_lora_capture_cases
from mrv2lab.runner.mla import FlashAttnMLAMetadataBuilder, MLADecoder, rows_of_decode
from mrv2lab.runner.model import Decoder, LinearFactory
from mrv2lab.runner.pp_utils import PPGroup
from mrv2lab.runner.punica_wrapper import LoRAMapping, PunicaWrapper
from mrv2lab.runner.sampler import SamplingParams, accept, sample
from mrv2lab.runner.scheduler import SchedulerOutput
from mrv2lab.runner.sequence import IntermediateTensors, copy_same_keys
from mrv2lab.runner.speculator import AttnStates, BaseDraft, DraftModel, Speculator
from mrv2lab.runner.states import RequestState

DummyLoRA = Callable[[LoRAModelManager, InputBatch], None]
"""Programs the adapter metadata of a dummy run: the seam of `lora_device_assert`, `lora_short_circuit`.

Capture programs none, as in vLLM 0.22 and 0.23: it finds what the last dummy run has left.
"""


def launch_for_nobody(adapter_manager: LoRAModelManager, input_batch: InputBatch) -> None:
    """Map no token to an adapter, and leave the host's values so that LoRA kernels are launched all the same.

    What dummy runs of vLLM 0.22 and 0.23 do. A mapping with adapters must not be left to a capture of fewer
    tokens: its indices address rows of the output.
    """
    tokens, requests = input_batch.num_tokens_after_padding, input_batch.num_reqs
    adapter_manager.set_adapter_mapping(LoRAMapping((0,) * tokens, (0,) * requests))
    for punica_wrapper in adapter_manager.punica_wrapper_mapping.values():
        for kernel_meta in (punica_wrapper.token_mapping_meta, punica_wrapper.prompt_mapping_meta):
            kernel_meta.no_lora_flag_cpu[0] = False
            kernel_meta.num_active_loras_cpu[0] = 1


SelectDummyLoRAs = Callable[[LoRAModelManager, InputBatch, int], None]
"""Programs adapters before each pass of a capture, given the number in its key. Seam of `lora_frozen_grid`.

As the hook that vLLM has since 0.24 (`create_lora_capture_hook`).
"""

Build = Callable[[], AttentionMetadata]
"""Prepares the dummy batch of one size in the input buffers, and builds metadata over it."""

AttentionStates = Callable[[Build], tuple[AttentionStatesOfSize, AttentionStatesOfSize]]
"""Decides which attention metadata each pass of a capture gets. The seam of `flashmla_lazy_init`.

Called for each size when the target is about to warm up. It returns what the target warms up and captures
with, and what the speculator does, whose turn comes when the target has captured all sizes. Each is a pair
of metadata, or `build` itself: then it is called before every pass.
"""


def fresh_attention_states(build: Build) -> tuple[AttentionStatesOfSize, AttentionStatesOfSize]:
    """Nothing is kept: dummy batch and metadata are made anew before every pass. As vLLM since 0.26.0; here a
    PIECEWISE size is prepared once for both of its passes."""
    return build, build


PrepareInputs = Callable[[BatchExecutionDescriptor], AttentionMetadata]
"""Prepares the dummy batch of a size in the input buffers, and builds metadata over it."""

CaptureSpeculator = Callable[[Speculator, AttnStates, PrepareInputs], None]
"""Captures the speculator when the target has captured all sizes. The seam of `stale_view`.

Given the speculator, what was kept for it by `AttentionStates`, and the way to make metadata anew.
"""


def capture_with_what_was_kept(
    speculator: Speculator, attn_states: AttnStates, prepare_inputs_to_capture: PrepareInputs
) -> None:
    """Leave it to `AttentionStates`."""
    speculator.capture(attn_states)


MakePwModel = Callable[[Decoder, CudaGraphManager], Callable[..., torch.Tensor]]
"""Returns what PIECEWISE batches call, and tells the manager how to run it. The seam of `breakable_graph`."""


def break_at_attention(model: Decoder, manager: CudaGraphManager) -> Callable[..., torch.Tensor]:
    """Let one capture drive the whole model, and break at attention. vLLM decorates its attention ops where
    they are defined, and reads VLLM_USE_BREAKABLE_CUDAGRAPH.
    """
    manager.use_breakable_cg = True
    for index in range(len(model.layers)):
        attn = model.layer(index).attn
        attn.op = eager_break_during_capture(attn.op)
    return model


CaptureStage = Callable[["ModelRunner"], None]
"""Makes a runner ready for replays: its buffers, its graphs. The seam of `pp_eager_fallback`."""


def capture_with_own_buffers(runner: "ModelRunner") -> None:
    """Give a stage that receives an address of its own to read from, then capture. As vLLM since #35162."""
    if not runner.pp_group.is_first_rank:
        runner.intermediate_tensors = runner.make_empty_intermediate_tensors(runner.config.max_num_tokens)
    runner.capture_model()


CopyReceived = Callable[[IntermediateTensors, IntermediateTensors], None]
"""Copies what arrived into a stage's own buffers."""


@dataclass
class ModelRunnerOutput:
    """What one step produced."""

    req_ids: list[str]  # in order of the rows
    # [num_reqs, vocab_size], and a row more for each draft that was verified; no rows before the last stage
    logits: torch.Tensor
    # for each request a token, and one more for each draft accepted; on a stage before the last they come
    # later, by `update_pp_decode_requests`
    sampled_token_ids: list[list[int]]
    cg_mode: CUDAGraphMode  # how the batch was run
    num_replays: int  # graphs of the target, counted where they are replayed
    draft_logits: torch.Tensor | None = None  # [num_reqs, vocab_size] of the speculator's first draft
    draft_token_ids: dict[str, list[int]] = field(default_factory=dict)  # to be verified in the next step
    num_tokens: int = 0  # of the batch, without padding
    work: dict[str, Amount] = field(
        default_factory=dict
    )  # for `target` and `speculator`, and in all of `step`


class ModelRunner:
    """Owns model, adapters, buffers and graphs of one pipeline stage. Mirrors `GPUModelRunner`.

    The types of its arguments say what goes into each seam. With `select_dummy_loras` graphs are keyed by how
    many adapters are in use; without, they are not, as before 0.24. Backends are `cuda`, `emulated`, `auto`.
    BadInput: `select_dummy_loras` in a mode with PIECEWISE graphs; drafts with several pipeline stages.
    """

    def __init__(
        self,
        config: RunnerConfig,
        backend: str = "auto",
        dummy_lora: DummyLoRA = launch_for_nobody,
        attention_states: AttentionStates = fresh_attention_states,
        make_pw_model: MakePwModel = break_at_attention,
        pp_group: PPGroup | None = None,
        capture_stage: CaptureStage = capture_with_own_buffers,
        copy_received: CopyReceived = copy_same_keys,
        select_dummy_loras: SelectDummyLoRAs | None = None,
        dp_group: DPGroup | None = None,
        capture_speculator: CaptureSpeculator = capture_with_what_was_kept,
    ):
        if select_dummy_loras and config.cudagraph_mode.has_piecewise_cudagraphs():
            raise BadInput("PIECEWISE graphs keyed by adapters; possible: NONE, FULL, FULL_DECODE_ONLY")
        self.select_dummy_loras = select_dummy_loras
        self.config = config
        self.pp_group, self.dp_group = pp_group or PPGroup(), dp_group or DPGroup()
        self.num_tokens_across_dp: torch.Tensor | None = None  # of the step that was dispatched last
        self.capture_stage, self.copy_received = capture_stage, copy_received
        self.device = device_of(backend)
        self.dummy_lora = dummy_lora
        self.attention_states, self.capture_speculator = attention_states, capture_speculator
        sizes = config.max_num_tokens, config.max_loras, config.vocab_size
        punica_wrapper = PunicaWrapper(*sizes, self.device, config.specialize_active_lora)
        linear = LinearFactory(config, punica_wrapper)
        self.model: Decoder | MLADecoder
        if config.attention_backend in MLA_BACKENDS:
            self.model = MLADecoder(config, linear).to(self.device)
        else:
            self.model = Decoder(config, linear, self.pp_group).to(self.device).drop_other_stages()
        self.lora_manager = LoRAModelManager(self.model, config.max_loras, punica_wrapper)
        self.req_states = RequestState(config.max_num_reqs, config.max_model_len)
        self.sampling: dict[str, SamplingParams] = {}
        self.prompt_lens: dict[str, int] = {}
        self.input_buffers = InputBuffers(config.max_num_reqs, config.max_num_tokens, self.device)
        self.block_tables = BlockTables(config, self.device)
        # One plan for all batches: a FULL graph follows it at the address that it has captured.
        is_planned = config.attention_backend == "FLASH_ATTN_MLA"
        self.metadata_builder = FlashAttnMLAMetadataBuilder(config, self.device) if is_planned else None
        # Where graphs leave their result: an address that stays.
        self.hidden_states = torch.zeros(
            config.max_num_tokens, config.hidden_size, dtype=config.dtype, device=self.device
        )
        # The same for a stage that hands its result on, and where a stage that receives may copy to.
        self.output_intermediate_tensors = self.make_empty_intermediate_tensors(config.max_num_tokens)
        self.intermediate_tensors: IntermediateTensors | None = None
        self.pp_send_work: list[Callable[[], Any]] = []
        self.pending: deque[tuple[InputBatch, Callable[[], list[int]]]] = deque()  # handed on, no tokens yet
        # A graph holds addresses, not tensors: memory that was captured must not be lent to somebody else.
        self.captured_inputs: list[IntermediateTensors | None] = []
        self.backend, self.make_pw_model = resolve(backend), make_pw_model
        self.resolve_cudagraph_mode(config.cudagraph_mode)
        self.speculator: Speculator | None = None
        if config.num_speculative_tokens and self.pp_group.world_size > 1:
            raise BadInput(f"drafts with {self.pp_group.world_size} pipeline stages; possible: 1")
        if config.num_speculative_tokens:
            model = self.model
            draft = DraftModel(model, linear) if isinstance(model, MLADecoder) else BaseDraft(config)
            shared = (self.input_buffers, self.hidden_states, self.block_tables, self.prepare_attn)
            draft = draft.to(self.device)
            self.speculator = Speculator(self.config, self.backend, draft, *shared, self.make_pw_model)

    def resolve_cudagraph_mode(self, mode: CUDAGraphMode) -> None:
        """Settle how batches are run; before anything is captured. vLLM does in `initialize_kv_cache`."""
        mode = resolve_cudagraph_mode_and_sizes(mode, min_cg_backend(self.model))
        self.config = replace(self.config, cudagraph_mode=mode)
        lora_capture_cases = get_lora_capture_cases(self.config) if self.select_dummy_loras else [0]
        self.cudagraph_manager = CudaGraphManager(self.config, self.backend, lora_capture_cases)
        self.pw_model: Callable[..., torch.Tensor | IntermediateTensors] = self.model
        if mode.has_piecewise_cudagraphs() and isinstance(self.model, Decoder):
            self.pw_model = self.make_pw_model(self.model, self.cudagraph_manager)

    def make_empty_intermediate_tensors(self, num_tokens: int) -> IntermediateTensors:
        """Room for what one stage hands to the next, [num_tokens, hidden_size] each: zeros, never garbage."""
        shape = (num_tokens, self.config.hidden_size)
        names = ("hidden_states", "residual")
        return IntermediateTensors(
            {name: torch.zeros(shape, dtype=self.config.dtype, device=self.device) for name in names}
        )

    def warm_up_and_capture(self) -> None:
        """What a worker does before it serves: a dummy run, then capture."""
        with progress.shown("start-up"):
            self.dummy_run(self.config.max_num_tokens)
            self.capture_stage(self)

    @torch.inference_mode()
    def dummy_run(self, num_tokens: int) -> None:
        """Run a batch of nothing, to compile kernels and to find out how much memory a batch needs."""
        input_batch = self._prepare_dummy(min(num_tokens, self.config.max_num_reqs), num_tokens)
        self.dummy_lora(self.lora_manager, input_batch)
        desc = BatchExecutionDescriptor(CUDAGraphMode.NONE, num_tokens, input_batch.num_reqs)
        self.run_model(desc, input_batch, self._dummy_intermediate_tensors(num_tokens))

    def capture_model(self) -> None:
        """Capture a graph for each size, over a dummy batch of that size; the speculator's afterwards."""
        if self.cudagraph_manager.use_breakable_cg:
            self.cudagraph_manager.init_breakable_cg_runner(self.pw_model)
        speculator_states: AttnStates = {}
        target_states: AttnStates = {}

        def create_forward_fn(desc: BatchExecutionDescriptor, warmup: bool) -> Prepared:
            input_batch = self._dummy_of(desc)
            if self.select_dummy_loras is not None:
                self.select_dummy_loras(self.lora_manager, input_batch, desc.num_active_loras)
            if self.config.uniform_decode:
                uniform_query_len(input_batch.num_scheduled_tokens)
            if warmup:
                states = self.attention_states(partial(self.prepare_inputs_to_capture, desc))
                target_states[desc], speculator_states[desc] = states
            attn_metadata = attention_state(target_states[desc], warmup=warmup)
            received = self._dummy_intermediate_tensors(desc.num_tokens)
            self.captured_inputs.append(received)
            return lambda cg_mode: self._forward(input_batch, attn_metadata, cg_mode, received), attn_metadata

        self.attn_states = self.cudagraph_manager.capture(create_forward_fn)
        if self.speculator is not None:
            self.capture_speculator(self.speculator, speculator_states, self.prepare_inputs_to_capture)

    @torch.inference_mode()
    def prepare_inputs_to_capture(self, desc: BatchExecutionDescriptor) -> AttentionMetadata:
        """Write a dummy batch of this size into the buffers, build metadata over it. Mirrors its namesake.

        From 0.21.0 to 0.25.1 vLLM gives a PIECEWISE pass no metadata: attention sees none, computes nothing.
        In 0.26.0 that is so where nothing breaks; since 0.27.1 each pass has some, `for_capture` or not.
        """
        return self.prepare_attn(self._dummy_of(desc), for_capture=desc.cg_mode is CUDAGraphMode.FULL)

    @torch.inference_mode()
    def execute_model(self, scheduler_output: SchedulerOutput) -> ModelRunnerOutput | None:
        """Run one step and sample a token for every request in it; None if no request is.

        A stage that is not the last returns before the tokens are there. All batches in flight go through
        the same buffers, one after the other. So none is written before what lies there has been sent: vLLM
        0.23.0 waits in the same place (`Worker.execute_model`, v1/worker/gpu_worker.py:810).
        """
        while self.pp_send_work:
            self.pp_send_work.pop()()
        self._update_states(scheduler_output)
        if not scheduler_output.num_scheduled_tokens:
            return None
        batch_desc = self.dispatch(scheduler_output)
        input_batch = self.prepare_inputs(scheduler_output, batch_desc)
        work = self.run_model(batch_desc, input_batch, self.receive(batch_desc.num_tokens))
        if self.pp_group.is_last_rank:
            output = self.sample(input_batch, batch_desc.cg_mode, len(work.graphs))
        else:
            output = self.hand_on(input_batch, batch_desc.cg_mode, len(work.graphs))
        output.num_tokens, output.work = scheduler_output.total_num_scheduled_tokens, {"target": work.amount}
        if not self.pp_group.is_last_rank:
            return output
        num_rejected = self._postprocess(input_batch, output.sampled_token_ids)
        if self.speculator is not None:
            next_token_ids = self._next_token_ids(input_batch, num_rejected)
            proposed = self.speculator.propose(input_batch, next_token_ids, num_rejected, batch_desc)
            output.draft_logits, output.work["speculator"] = proposed.logits, proposed.work
            if self.config.num_lookahead_tokens:
                output.draft_token_ids = dict(zip(input_batch.req_ids, proposed.token_ids, strict=True))
        return output

    @torch.inference_mode()
    def execute_dummy_batch(self) -> BatchExecutionDescriptor:
        """What a data-parallel rank without requests runs beside others: a token, padded as theirs."""
        desc = self._dispatch(1, 1, 1)
        self.run_model(desc, self._dummy_of(desc))
        return desc

    def receive(self, num_tokens: int) -> IntermediateTensors | None:
        """What the model is to read of the previous stage's work; None on the first stage.

        With `intermediate_tensors` it is always the same memory, and holds the batch whose turn it is: each
        batch in flight arrives in memory of its own. Without, it is what has just arrived, wherever that is.
        """
        if self.pp_group.is_first_rank:
            return None
        received: IntermediateTensors = self.pp_group.recv_tensor_dict()[:num_tokens]
        if self.intermediate_tensors is None:
            return received
        self.copy_received(self.intermediate_tensors[:num_tokens], received)
        rows: IntermediateTensors = self.intermediate_tensors[:num_tokens]
        return rows

    def hand_on(self, input_batch: InputBatch, cg_mode: CUDAGraphMode, num_replays: int) -> ModelRunnerOutput:
        """Begin to send this stage's result to the next, and to receive what the last stage will sample."""
        result = self.output_intermediate_tensors[: input_batch.num_tokens_after_padding]
        self.pp_send_work = self.pp_group.isend_tensor_dict(result)
        self.pending.append((input_batch, self.pp_group.receive(input_batch.num_reqs)))
        no_logits = self.hidden_states.new_empty(0, self.config.vocab_size)
        return ModelRunnerOutput(input_batch.req_ids, no_logits, [], cg_mode, num_replays)

    def update_pp_decode_requests(self, output: ModelRunnerOutput) -> None:
        """Wait for the tokens of the oldest batch that was handed on, and note them. Mirrors its namesake.

        Before its requests are scheduled again; other batches were run in the meantime. The last stage has
        noted them when it sampled.
        """
        if not self.pp_group.is_last_rank:
            input_batch, wait = self.pending.popleft()
            output.sampled_token_ids = [[token_id] for token_id in wait()]
            self._postprocess(input_batch, output.sampled_token_ids)

    def dispatch(self, scheduler_output: SchedulerOutput) -> BatchExecutionDescriptor:
        """How this step will be run: the graph it is padded to, or eagerly."""
        indices = [self.req_states.req_id_to_index[r] for r in scheduler_output.num_scheduled_tokens]
        # As vLLM's `get_num_active_loras_for_dispatch`: requests without an adapter do not count.
        loras = set(self.req_states.lora_ids[indices].tolist()) - {0} if self.select_dummy_loras else ()
        query_lens = scheduler_output.num_scheduled_tokens.values()
        shape = (len(query_lens), sum(query_lens))
        return self._dispatch(*shape, get_uniform_token_count(*shape, max(query_lens)), len(loras))

    def _dispatch(
        self, num_reqs: int, num_tokens: int, uniform_token_count: int | None, num_active_loras: int = 0
    ) -> BatchExecutionDescriptor:
        shape = (num_reqs, num_tokens, uniform_token_count, num_active_loras)
        agreed = dispatch_cg_and_sync_dp(self.cudagraph_manager, *shape, self.dp_group)
        desc, self.num_tokens_across_dp = agreed
        return desc

    def prepare_inputs(
        self, scheduler_output: SchedulerOutput, batch_desc: BatchExecutionDescriptor
    ) -> InputBatch:
        """Write the step's inputs and metadata into the persistent buffers."""
        states = self.req_states
        req_ids = list(scheduler_output.num_scheduled_tokens)
        query_lens = np.array(list(scheduler_output.num_scheduled_tokens.values()))
        idx_mapping = np.array([states.req_id_to_index[req_id] for req_id in req_ids])
        computed = states.num_computed_tokens[idx_mapping]
        positions = np.concatenate([np.arange(c, c + n) for c, n in zip(computed, query_lens, strict=True)])
        req_of_token = idx_mapping.repeat(query_lens)

        input_ids, seq_lens = states.all_token_ids[req_of_token, positions], computed + query_lens
        self.input_buffers.copy_from(input_ids, positions, query_lens, seq_lens)
        self.block_tables.prepare(idx_mapping, req_of_token, positions)
        drafts = scheduler_output.scheduled_spec_decode_tokens
        num_draft_tokens = np.array([len(drafts.get(req_id, ())) for req_id in req_ids])
        prompt_mapping = tuple(states.lora_ids[idx_mapping.repeat(1 + num_draft_tokens)].tolist())
        index_mapping = tuple(states.lora_ids[req_of_token].tolist())
        mapping = LoRAMapping(index_mapping, prompt_mapping)
        self.lora_manager.set_active_adapters(set(prompt_mapping) - {0}, mapping)
        padded, buffers = (batch_desc.num_tokens, batch_desc.num_reqs or len(req_ids)), self.input_buffers
        return InputBatch(req_ids, idx_mapping, query_lens, seq_lens, *padded, buffers, num_draft_tokens)

    def run_model(
        self,
        batch_desc: BatchExecutionDescriptor,
        input_batch: InputBatch,
        received: IntermediateTensors | None = None,
    ) -> Work:
        """Bring this stage's result up to date for the batch; returns what was done for it.

        A FULL graph takes no arguments: what is `received` reaches it only by lying where it reads. So does
        the attention metadata, whose buffers are written here in every mode.
        """
        attn_metadata = self.prepare_attn(input_batch)
        with measured() as work:
            if batch_desc.cg_mode is CUDAGraphMode.FULL:
                self.cudagraph_manager.run_fullgraph(batch_desc)
            else:
                self._forward(input_batch, attn_metadata, batch_desc.cg_mode, received)
        return work

    def sample(self, input_batch: InputBatch, cg_mode: CUDAGraphMode, num_replays: int) -> ModelRunnerOutput:
        """Logits and tokens. Always eager, in whatever mode the model was run."""
        logits = self.model.compute_logits(self.hidden_states[input_batch.logits_indices])
        states, starts = self.req_states, np.cumsum(input_batch.num_logits) - input_batch.num_logits
        params: list[SamplingParams] = []
        num_sampled: list[int] = []
        for req_id, n in zip(input_batch.req_ids, input_batch.num_logits, strict=True):
            done = int(states.total_len[states.req_id_to_index[req_id]]) - self.prompt_lens[req_id]
            params += [self.sampling[req_id]] * n
            num_sampled += range(done, done + n)
        tokens = sample(logits, params, num_sampled)
        if not self.pp_group.is_first_rank:
            self.pp_group.broadcast(tokens)
        sampled = [
            accept(states.draft_token_ids(req_id, n - 1), tokens[start : start + n])
            for req_id, start, n in zip(input_batch.req_ids, starts, input_batch.num_logits, strict=True)
        ]
        return ModelRunnerOutput(input_batch.req_ids, logits, sampled, cg_mode, num_replays)

    def prepare_attn(self, input_batch: InputBatch, *, for_capture: bool = False) -> AttentionMetadata:
        """Attention metadata of a batch, over the persistent buffers. `for_capture`: the host values will be
        frozen in a FULL graph, so take the worst case, as vLLM does.
        """
        max_query_len = int(input_batch.num_scheduled_tokens.max())
        query_len = max_query_len if max_query_len <= self.config.decode_query_len else 1  # 1: nobody plans
        return AttentionMetadata(
            query_start_loc=input_batch.query_start_loc,
            seq_lens=input_batch.seq_lens,
            max_seq_len=self.config.max_model_len if for_capture else int(input_batch.seq_lens_np.max()),
            block_table=self.block_tables.input_block_table[: input_batch.num_reqs_after_padding],
            slot_mapping=self.block_tables.slot_mapping[: input_batch.num_tokens_after_padding],
            max_query_len=max_query_len,
            scheduler_metadata=(
                self.metadata_builder.build(rows_of_decode(input_batch.seq_lens, query_len))
                if self.metadata_builder
                else FlashMLASchedMeta()
            ),
        )

    def _forward(
        self,
        input_batch: InputBatch,
        attn_metadata: AttentionMetadata,
        cg_mode: CUDAGraphMode,
        received: IntermediateTensors | None = None,
    ) -> None:
        model_inputs: dict[str, Any] = {
            "input_ids": input_batch.input_ids,
            "positions": input_batch.positions,
        }
        if received is not None:
            model_inputs["intermediate_tensors"] = received
        with set_forward_context(attn_metadata):
            if cg_mode is CUDAGraphMode.PIECEWISE:
                output = self.cudagraph_manager.run_pw_graph(self.pw_model, model_inputs)
            else:
                output = self.model(**model_inputs)
        self._keep(output, input_batch.num_tokens_after_padding)

    def _keep(self, output: torch.Tensor | IntermediateTensors, num_tokens: int) -> None:
        """Copy a stage's result to the address that stays."""
        if isinstance(output, torch.Tensor):
            self.hidden_states[:num_tokens] = output
            return
        for name, buffer in self.output_intermediate_tensors.items():
            buffer[:num_tokens] = output[name]

    def _dummy_intermediate_tensors(self, num_tokens: int) -> IntermediateTensors | None:
        """What stands in for the previous stage's work while none arrives: own buffers, if there are any."""
        if self.pp_group.is_first_rank:
            return None
        own = self.intermediate_tensors or self.make_empty_intermediate_tensors(num_tokens)
        rows: IntermediateTensors = own[:num_tokens]
        return rows

    def _next_token_ids(self, input_batch: InputBatch, num_rejected: np.ndarray) -> torch.Tensor:
        """For each token of a batch that has just been sampled for, the one that follows it. Behind a
        rejected draft comes what nobody will look at.
        """
        states, lens = self.req_states, input_batch.num_scheduled_tokens
        ends = states.num_computed_tokens[input_batch.idx_mapping_np] + num_rejected
        after = [
            states.all_token_ids[index, end - n + 1 : end + 1]
            for index, end, n in zip(input_batch.idx_mapping_np, ends, lens, strict=True)
        ]
        return torch.from_numpy(np.concatenate(after))

    def _dummy_of(self, desc: BatchExecutionDescriptor) -> InputBatch:
        num_reqs = desc.num_reqs or dummy_num_reqs(self.config, desc.num_tokens)
        return self._prepare_dummy(num_reqs, desc.num_tokens)

    def _prepare_dummy(self, num_reqs: int, num_tokens: int) -> InputBatch:
        """A batch of nothing. Rows of the block table, and all of LoRA's metadata, stay as they were left."""
        self.block_tables.prepare_dummy()
        return InputBatch.make_dummy(num_reqs, num_tokens, self.input_buffers)

    def _update_states(self, scheduler_output: SchedulerOutput) -> None:
        for req_id in scheduler_output.finished_req_ids:
            self.req_states.remove_request(req_id)
        for request in scheduler_output.new_requests:
            index = self.req_states.add_request(request.req_id, request.prompt_token_ids, request.lora_id)
            self.block_tables.set_block_ids(index, scheduler_output.new_block_ids[request.req_id])
            self.sampling[request.req_id] = request.sampling
            self.prompt_lens[request.req_id] = len(request.prompt_token_ids)
        for req_id, draft_token_ids in scheduler_output.scheduled_spec_decode_tokens.items():
            self.req_states.set_draft_tokens(req_id, draft_token_ids)

    def _postprocess(self, input_batch: InputBatch, sampled_token_ids: list[list[int]]) -> np.ndarray:
        """Note what was sampled; returns for each request how many of its drafts were not."""
        num_rejected: np.ndarray = input_batch.num_logits - [len(tokens) for tokens in sampled_token_ids]
        computed = input_batch.num_scheduled_tokens - num_rejected
        self.req_states.num_computed_tokens[input_batch.idx_mapping_np] += computed
        for req_id, token_ids in zip(input_batch.req_ids, sampled_token_ids, strict=True):
            self.req_states.append_tokens(req_id, token_ids)
        return num_rejected
