"""A real `GPUModelRunner` of the release on the path, built part by part instead of by its constructor.

The constructor wants a model from a checkpoint, a device and its streams. Here the parts that the bugs
live in are vLLM's: `_dummy_run`, `execute_model`, `capture_model`, the graph managers, the input
buffers, the LoRA managers. What a probe does not look at stands in: the model, the KV cache, the
scheduler's bookkeeping (seven methods of the runner, `_Bookkeeping`).
"""

import ast
import inspect
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, field, fields
from importlib import import_module
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from mrv2lab.graphs import CapturedGraph
from mrv2lab.graphs.work import Amount, counted, fits_a_graph, measured
from mrv2lab.upstream.platform import pipeline_rank

CPU = torch.device("cpu")


def _module(name: str) -> Any:
    return import_module(f"vllm.v1.worker.gpu.{name}")


class NoBlocks:
    """`BlockTables` of a model that keeps no KV cache, or keeps it itself."""

    cp_size, cp_rank, cp_interleave = 1, 0, 1

    def __init__(self, max_num_reqs: int, max_num_tokens: int):
        self.block_tables = torch.zeros(max_num_reqs, 1, dtype=torch.int32)
        self.slot_mappings = torch.zeros(1, max_num_tokens, dtype=torch.int64)

    def get_dummy_block_tables(self, num_reqs: int) -> tuple[torch.Tensor, ...]:
        return (self.block_tables[:num_reqs],)

    def get_dummy_slot_mappings(self, num_tokens: int) -> torch.Tensor:
        return self.slot_mappings[:, :num_tokens]

    def apply_staged_writes(self) -> None: ...


class ModelState:
    """`ModelState` of a model without rotary tables and pictures. `prepare_attn` is what probes override."""

    num_new_sampled_tokens_per_step = 1
    supports_mm_inputs = False

    def prepare_attn(self, input_batch: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
        return {}

    def prepare_inputs(self, *args: Any) -> dict[str, Any]:
        return {}

    prepare_dummy_inputs = prepare_inputs

    def preprocess_state(self, *args: Any) -> None:
        """No recurrent state."""

    capture_inner_cudagraphs = preprocess_state  # nor graphs of its own


@dataclass(frozen=True)
class Request:
    """One request in one step: its tokens, how long its sequence is now, its adapter (0 for none)."""

    tokens: tuple[int, ...]
    seq_len: int
    lora_id: int = 0


@dataclass(frozen=True)
class Setup:
    """What a probe chooses. `mode` names a `CUDAGraphMode`."""

    mode: str
    capture_sizes: tuple[int, ...]
    max_num_reqs: int
    decode_query_len: int = 1
    is_first: bool = True
    is_last: bool = True


def make_vllm_config(setup: Setup) -> Any:
    """A real `VllmConfig`, for a CPU and without a model."""
    config = import_module("vllm.config")
    made = config.VllmConfig(device_config=config.DeviceConfig(device="cpu"))
    made.scheduler_config.max_num_seqs = setup.max_num_reqs
    made.scheduler_config.max_num_batched_tokens = max(setup.capture_sizes)
    made.compilation_config.cudagraph_capture_sizes = list(setup.capture_sizes)
    made.compilation_config.max_cudagraph_capture_size = max(setup.capture_sizes)
    return made


def make_model_config(**stated: Any) -> Any:
    """What a probe states of its model; everything else as the release's `ModelConfig` has it by default."""
    known = fields(import_module("vllm.config").ModelConfig)
    return SimpleNamespace(**{f.name: f.default for f in known if f.default is not MISSING} | stated)


def cudagraph_mode(name: str) -> Any:
    """vLLM's `CUDAGraphMode` of this name."""
    return import_module("vllm.config.compilation").CUDAGraphMode[name]


class _Bookkeeping:
    """Overrides what reads the scheduler's and the requests' state, which probes do not have."""

    requests: Sequence[Request] = ()

    def update_requests(self, *args: Any) -> None:
        """Requests come and go with every step."""

    update_pp_decode_requests = finish_requests = free_states = add_requests = update_requests

    def prepare_inputs(self, scheduler_output: Any, *args: Any) -> Any:
        """Write the requests of this step into the persistent buffers, padded to the descriptor. From 0.28
        on, what the release's `gather_batch_req_state` has read in `req_states` comes before that.
        """
        descriptor = _module("cudagraph_utils").BatchExecutionDescriptor
        return fill_buffers(self, next(arg for arg in args if isinstance(arg, descriptor)))

    def prepare_attn(self, input_batch: Any) -> tuple[Any, Any]:
        """No KV cache: the same tables as in a dummy run."""
        tables: NoBlocks = self.block_tables  # type: ignore[attr-defined]
        tokens = tables.get_dummy_slot_mappings(input_batch.num_tokens_after_padding)
        return tables.get_dummy_block_tables(input_batch.num_reqs_after_padding), tokens


def fill_buffers(runner: Any, batch_desc: Any) -> Any:
    """An `InputBatch` of `runner.requests`, padded as the release's own `prepare_inputs` pads.

    Behind the batch query_start_loc repeats and seq_lens are zero. input_ids and positions stay as they were:
    only a dummy batch zeroes them.
    """
    requests, buffers = runner.requests, runner.input_buffers
    left_over = buffers.input_ids.clone(), buffers.positions.clone()
    batch = _module("input_batch").InputBatch.make_dummy(len(requests), batch_desc.num_tokens, buffers)
    query_lens, query_start_loc = _query_lens(requests), buffers.query_start_loc
    positions = [np.arange(r.seq_len - len(r.tokens), r.seq_len) for r in requests]
    _write(buffers.input_ids, np.concatenate([r.tokens for r in requests]), left_over[0])
    _write(buffers.positions, np.concatenate(positions), left_over[1])
    _write(buffers.seq_lens, [r.seq_len for r in requests], 0)
    _write(query_start_loc, [0, *np.cumsum(query_lens)], sum(query_lens))
    batch.req_ids = [f"request-{i}" for i in range(len(requests))]
    batch.num_tokens, batch.num_scheduled_tokens = int(sum(query_lens)), query_lens
    batch.num_reqs_after_padding = batch_desc.num_reqs or len(requests)
    batch.query_start_loc = query_start_loc[: batch.num_reqs_after_padding + 1]
    batch.seq_lens = buffers.seq_lens[: batch.num_reqs_after_padding]
    return batch


def _write(buffer: torch.Tensor, values: Any, padding: Any) -> None:
    """Values to the front of a buffer; behind them a number, or what stands there in a tensor as long."""
    behind = buffer[len(values) :]
    behind.copy_(padding[len(values) :]) if isinstance(padding, torch.Tensor) else behind.fill_(int(padding))
    buffer[: len(values)] = torch.as_tensor(np.asarray(values), dtype=buffer.dtype)


def _query_lens(requests: Sequence[Request]) -> np.ndarray:
    return np.array([len(r.tokens) for r in requests], dtype=np.int32)


def make_model_runner(
    model: torch.nn.Module, setup: Setup, model_state: ModelState | None = None, lora_config: Any = None
) -> Any:
    """A `GPUModelRunner` that serves `model` with graphs of `setup.mode`."""
    upstream = _module("model_runner").GPUModelRunner
    cls: Any = type(upstream.__name__, (_Bookkeeping, upstream), {})
    runner: Any = object.__new__(cls)
    max_num_tokens, vllm_config = max(setup.capture_sizes), make_vllm_config(setup)
    vllm_config.lora_config = lora_config
    runner.__dict__.update(constants(upstream.__init__))
    runner.__dict__.update(
        {name: part for name, part in vars(vllm_config).items() if name.endswith("_config")},
        vllm_config=vllm_config, model=model, model_state=model_state or ModelState(),
        model_config=make_model_config(dtype=torch.float32), device=CPU,
        max_num_reqs=setup.max_num_reqs, max_num_tokens=max_num_tokens, setup=setup,
        decode_query_len=setup.decode_query_len,
        is_first_pp_rank=setup.is_first, is_last_pp_rank=setup.is_last,
        use_pp=not (setup.is_first and setup.is_last), intermediate_tensors=None,
        dp_size=1, dp_rank=0, dcp_size=1, dcp_rank=0, cp_interleave=1,
        is_encoder_decoder=False, is_encoder_only=False,
        supports_mm_inputs=False, uses_inputs_embeds=False, pcp_manager=None, _draft_workspace_lane=0,
        block_tables=NoBlocks(setup.max_num_reqs, max_num_tokens), attn_groups=[],
        kv_cache_config=SimpleNamespace(kv_cache_groups=[]),
        kv_connector=_module("kv_connector").KVConnector(),
        req_states=SimpleNamespace(num_computed_tokens=SimpleNamespace(gpu=None)),
    )  # fmt: skip
    for name, made in TIMED_AND_WARMED.items():
        if cls := getattr(_module("model_runner"), made, None):
            setattr(runner, name, cls(*[vllm_config][: len(inspect.signature(cls).parameters)]))
    if runner.use_pp and (handler := getattr(_module("pp_utils"), "PPHandler", None)):
        # Without its stream and its group of processes. Since 0.32 it sees what a rank is about to send.
        runner.pp_handler = object.__new__(handler)
        runner.pp_handler.aux_hidden_state_relay_keys = ()  # nothing of a draft to pass on
    with pipeline_rank(is_first=setup.is_first, is_last=setup.is_last):
        runner.input_buffers = _module("input_batch").InputBuffers(
            max_num_reqs=setup.max_num_reqs, max_num_tokens=max_num_tokens, device=CPU
        )
        runner.lora_state = _module("lora_utils").LoraState(setup.max_num_reqs)
        runner.cudagraph_manager = make_manager(
            _module("cudagraph_utils").ModelCudaGraphManager, runner, setup
        )
    if find_spec("vllm.v1.worker.workspace"):  # the worker does this; since 0.32 a runner locks it
        import_module("vllm.v1.worker.workspace").init_workspace_manager(CPU)
    if find_spec("vllm.v1.worker.gpu.eplb_utils"):
        runner.eplb = _module("eplb_utils").EPLBController(runner.vllm_config.parallel_config, CPU)
    return runner


TIMED_AND_WARMED = {"step_timing": "StepTimingCollector", "jit_warmup_registry": "JitWarmupRegistry"}
"""What later releases keep beside a step. They do nothing until somebody collects or compiles."""


def constants(constructor: Any) -> dict[str, Any]:
    """What a constructor sets to a constant, whatever it is given: `self.pp_handler: X | None = None`. A
    release that adds a part to its runner states here what the runner is without it.
    """
    (function,) = ast.parse(textwrap.dedent(inspect.getsource(constructor))).body
    return {
        target.attr: statement.value.value
        for statement in reversed(function.body)  # type: ignore[attr-defined]
        if isinstance(statement, ast.Assign | ast.AnnAssign) and isinstance(statement.value, ast.Constant)
        for target in getattr(statement, "targets", None) or [statement.target]  # type: ignore[union-attr]
        if isinstance(target, ast.Attribute)
    }


def make_manager(cls: Any, runner: Any, setup: Setup, **offered: Any) -> Any:
    """A graph manager with what the release's constructor asks for; `offered` is more that some release
    wants."""
    offered |= {
        "vllm_config": runner.vllm_config, "device": CPU,
        "cudagraph_mode": cudagraph_mode(setup.mode), "decode_query_len": setup.decode_query_len,
    }  # fmt: skip
    if cases_of := getattr(_module("lora_utils"), "get_lora_capture_cases", None):  # from 0.24 on
        configs = runner.lora_config, runner.vllm_config.compilation_config
        offered["lora_capture_cases"] = cases_of(*configs)
    return cls(**known(cls, **offered))


def known(function: Any, **offered: Any) -> dict[str, Any]:
    """Of these arguments those that the release's function takes."""
    asked = inspect.signature(function).parameters
    return {name: value for name, value in offered.items() if name in asked}


@dataclass(frozen=True)
class Step:
    """What one step gave."""

    output: Any  # hidden states [num_tokens, hidden_size]; on ranks before the last, what goes to the next
    graphs: tuple[CapturedGraph, ...] = ()  # what was replayed for it, in order
    work: dict[str, Amount] = field(default_factory=dict)  # for each model, and in the whole `step`
    fits: bool = False  # whether the batch fits a size that graphs were asked for

    @property
    def num_replays(self) -> int:
        return len(self.graphs)

    @property
    def kernels(self) -> dict[str, int]:
        """Nodes by name."""
        return dict(sum((graph.kernels() for graph in self.graphs), Counter()))


def execute(runner: Any, requests: Sequence[Request], received: Any = None) -> Step:
    """Run the real `execute_model` on these requests, and on what the rank before has sent."""
    scheduler_output = import_module("vllm.v1.core.sched.output").SchedulerOutput.make_empty()
    names = [f"request-{i}" for i in range(len(requests))]
    scheduler_output.num_scheduled_tokens = dict(zip(names, _query_lens(requests).tolist(), strict=True))
    scheduler_output.total_num_scheduled_tokens = sum(len(r.tokens) for r in requests)
    runner.requests = requests
    _describe(runner.req_states, names, requests, setup=runner.setup)
    for i, (name, request) in enumerate(zip(names, requests, strict=True)):
        runner.lora_state.remove_request(name)
        runner.lora_state.add_request(name, i, lora_request(request.lora_id))
    with torch.inference_mode(), counted(), measured() as work, measured_inside(runner.model) as of_model:
        sent = runner.execute_model(scheduler_output, received)
    num_tokens, setup = scheduler_output.total_num_scheduled_tokens, runner.setup
    output = runner.execute_model_state.hidden_states[:num_tokens].clone() if sent is None else sent
    is_decode = all(len(r.tokens) == setup.decode_query_len for r in requests)
    return Step(
        output,
        tuple(work.graphs),
        {"target": of_model[0]._replace(nodes=work.num_nodes), "step": work.amount},
        fits_a_graph(setup.mode, setup.capture_sizes, num_tokens, is_decode=is_decode),
    )


def _describe(req_states: Any, names: Sequence[str], requests: Sequence[Request], *, setup: Setup) -> None:
    """The host's numbers about the requests that vLLM reads before it chooses a graph, from 0.28 on."""
    computed = np.array([r.seq_len - len(r.tokens) for r in requests])
    is_decode = _query_lens(requests) == setup.decode_query_len
    req_states.req_id_to_index = {name: i for i, name in enumerate(names)}
    req_states.prefill_len = SimpleNamespace(np=np.where(is_decode, computed, [r.seq_len for r in requests]))
    req_states.num_computed_prefill_tokens = computed


@contextmanager
def measured_inside(model: torch.nn.Module) -> Iterator[list[Amount]]:
    """What forward passes of a model issue meanwhile; a replay is none of them. One item, once it is over."""
    original, done = model.forward, [Amount()]

    def forward(*args: Any, **kwargs: Any) -> Any:
        with measured() as work:
            result = original(*args, **kwargs)
        done[0] = Amount(*map(sum, zip(done[0], work.amount, strict=True)))
        return result

    with patch.object(model, "forward", forward):
        yield done


def lora_request(lora_id: int) -> Any:
    """vLLM's `LoRARequest` for an adapter that is registered already, or None for 0."""
    if lora_id == 0:
        return None
    return import_module("vllm.lora.request").LoRARequest(f"adapter-{lora_id}", lora_id, "registered")
