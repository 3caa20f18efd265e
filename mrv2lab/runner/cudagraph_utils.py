"""Captures graphs for several batch sizes and finds the one for a batch.

Mirrors `vllm/v1/worker/gpu/cudagraph_utils.py`.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import torch

from mrv2lab import progress
from mrv2lab.errors import BadInput
from mrv2lab.graphs import CapturedGraph, capture, new_pool
from mrv2lab.graphs.breakable import BreakableCUDAGraphWrapper
from mrv2lab.runner.attention import AttentionBackend, AttentionCGSupport
from mrv2lab.runner.config import CUDAGraphMode, RunnerConfig
from mrv2lab.runner.forward_context import AttentionMetadata
from mrv2lab.runner.lora_utils import effective_num_loras

logger = logging.getLogger(__name__)


def resolve_cudagraph_mode_and_sizes(mode: CUDAGraphMode, min_cg_backend: AttentionBackend) -> CUDAGraphMode:
    """Lower a mode to what attention supports, with a warning; PIECEWISE graphs leave attention out.

    Mirrors its namesake in `vllm/config/compilation.py` where nothing is compiled. That one also rounds
    capture sizes for decodes of several tokens (since 0.25 the manager does); here those that do not divide
    are no decodes. Nor is a mode lowered for drafts. BadInput: FULL graphs of every batch, where attention
    supports none.
    """
    support = min_cg_backend.cudagraph_support
    if mode.mixed_mode() is CUDAGraphMode.FULL and support is not AttentionCGSupport.ALWAYS:
        if support is AttentionCGSupport.NEVER:
            raise BadInput(f"FULL graphs with attention by {min_cg_backend.name}; possible: PIECEWISE, NONE")
        mode = _lowered(mode, CUDAGraphMode.FULL_DECODE_ONLY, min_cg_backend)
    if mode.decode_mode() is CUDAGraphMode.FULL and support is AttentionCGSupport.NEVER:
        mode = _lowered(mode, CUDAGraphMode.NONE, min_cg_backend)
    return mode


def _lowered(mode: CUDAGraphMode, to: CUDAGraphMode, backend: AttentionBackend) -> CUDAGraphMode:
    said = "%s graphs: attention by %s supports %s; setting %s"
    logger.warning(said, mode.name, backend.name, backend.cudagraph_support.name, to.name)
    return to


@dataclass(frozen=True)
class BatchExecutionDescriptor:
    """Shape and mode of a batch: what capture and run time must agree on. Mirrors its namesake."""

    cg_mode: CUDAGraphMode
    num_tokens: int
    num_reqs: int | None  # None: requests are not padded, because no PIECEWISE graph sees them
    uniform_token_count: int | None = None  # None: requests may have any number of tokens
    num_active_loras: int = 0  # adapters in use; 0 also where graphs are not keyed by them


class AttentionStatePair(NamedTuple):
    """The attention metadata that warm-up and capture of one size ran with. Mirrors its namesake of 0.23."""

    warmup: AttentionMetadata
    captured: AttentionMetadata


AttentionStatesOfSize = AttentionStatePair | Callable[[], AttentionMetadata]
"""What is kept for the passes of one size: their metadata, or the way to build it when a pass runs."""


def attention_state(states: AttentionStatesOfSize, *, warmup: bool) -> AttentionMetadata:
    """The metadata of one pass, taken out of a pair or built now."""
    if isinstance(states, AttentionStatePair):
        return states.warmup if warmup else states.captured
    return states()


Prepared = tuple[Callable[[CUDAGraphMode], None], AttentionMetadata]
"""A forward pass, which is told how to run, and the attention metadata that it will use."""


CreateForwardFn = Callable[[BatchExecutionDescriptor, bool], Prepared]
"""Prepares the inputs of a size outside the graph, to warm up (True) or to be captured. Mirrors its namesake,
which since 0.26.0 returns the forward pass alone.

A PIECEWISE size is prepared once, for both passes (since 0.26.0 only where nothing breaks).
"""


class CudaGraphManager:
    """One graph for each capture size, all in one pool. Mirrors `CudaGraphManager`."""

    def __init__(
        self,
        config: RunnerConfig,
        backend: str,
        lora_capture_cases: Sequence[int] = (0,),  # numbers of adapters that every size is captured for
        decode_query_len: int | None = None,
    ):
        self.lora_capture_cases = lora_capture_cases
        self.decode_query_len = decode_query_len or config.decode_query_len
        self.backend = backend
        # The FULL ones. PIECEWISE graphs belong to whoever captures them inside `run_pw_graph`.
        self.graphs: dict[BatchExecutionDescriptor, CapturedGraph] = {}
        self.pool = new_pool(backend)
        self.config = config
        self.capture_descs = list(self._init_capture_descs(config))
        self._graphs_captured = False
        self.use_breakable_cg = False  # or PIECEWISE models replay pieces of their own, as compiled ones do
        self.breakable_cg_runner: BreakableCUDAGraphWrapper | None = None

    def set_mode(self, mode: CUDAGraphMode) -> None:
        """Capture in another mode than the configured one; before anything is captured."""
        self.capture_descs = list(self._init_capture_descs(replace(self.config, cudagraph_mode=mode)))

    def _init_capture_descs(self, config: RunnerConfig) -> Iterator[BatchExecutionDescriptor]:
        mode, query_len = config.cudagraph_mode, self.decode_query_len
        for n, loras in product(sorted(config.cudagraph_capture_sizes), self.lora_capture_cases):
            num_decodes, rest = divmod(n, query_len)
            if mode.separate_routine() and not rest and 0 < num_decodes <= config.max_num_reqs:
                yield BatchExecutionDescriptor(mode.decode_mode(), n, num_decodes, query_len, loras)
            if (mixed_mode := mode.mixed_mode()) is not CUDAGraphMode.NONE:
                num_reqs = dummy_num_reqs(config, n) if mixed_mode is CUDAGraphMode.FULL else None
                yield BatchExecutionDescriptor(mixed_mode, n, num_reqs, None, loras)

    @property
    def capture_order(self) -> list[BatchExecutionDescriptor]:
        """PIECEWISE first, as it needs most memory, and the largest size first: the others fit into it."""
        return sorted(self.capture_descs, key=lambda d: (d.cg_mode is CUDAGraphMode.FULL, -d.num_tokens))

    @torch.inference_mode()
    def capture(
        self, create_forward_fn: CreateForwardFn
    ) -> dict[BatchExecutionDescriptor, AttentionStatePair]:
        """Capture every size in `capture_order`; returns what its passes ran with, for a speculator."""
        attn_states = {}
        for num_captured, desc in enumerate(self.capture_order):
            progress.tell("capturing", num_captured / len(self.capture_order))
            warm_up, warmup_state = create_forward_fn(desc, True)
            warm_up(CUDAGraphMode.NONE)  # compiling a kernel has no place in a graph
            if desc.cg_mode is CUDAGraphMode.PIECEWISE:
                warm_up(CUDAGraphMode.PIECEWISE)
                attn_states[desc] = AttentionStatePair(warmup_state, warmup_state)
                continue
            forward_fn, captured_state = create_forward_fn(desc, False)
            run = partial(forward_fn, CUDAGraphMode.NONE)
            self.graphs[desc] = capture(run, backend=self.backend, pool=self.pool)
            attn_states[desc] = AttentionStatePair(warmup_state, captured_state)
        self._graphs_captured = True
        return attn_states

    def candidates(self, num_tokens: int, num_active_loras: int = 0) -> list[BatchExecutionDescriptor]:
        """What is captured at the smallest size that holds the tokens, decodes first. No larger one is tried.
        Mirrors `_candidates` of 0.23; since 0.29 each mode has a smallest size of its own.
        """
        sizes = [desc.num_tokens for desc in self.capture_descs if 0 < num_tokens <= desc.num_tokens]
        key = min(sizes, default=0), num_active_loras
        return [desc for desc in self.capture_descs if (desc.num_tokens, desc.num_active_loras) == key]

    def dispatch(
        self, num_reqs: int, num_tokens: int, uniform_token_count: int | None, num_active_loras: int = 0
    ) -> BatchExecutionDescriptor:
        """What is captured at that size if it fits the batch, or mode NONE for running it eagerly.
        `uniform_token_count` is None where requests differ; `num_active_loras` does not count "no adapter".
        """
        loras = effective_num_loras(self.lora_capture_cases, num_active_loras)
        for desc in self.candidates(num_tokens, loras) if self._graphs_captured else []:
            if _is_compatible(desc, num_reqs, uniform_token_count):
                return desc
        return BatchExecutionDescriptor(CUDAGraphMode.NONE, num_tokens, num_reqs)

    def run_fullgraph(self, desc: BatchExecutionDescriptor) -> None:
        """Replay the graph of `desc` on what the input buffers hold now."""
        self.graphs[desc].replay()

    def init_breakable_cg_runner(self, model: Callable[..., Any]) -> None:
        """Bind the model and the pool to breakable graphs, once."""
        if self.breakable_cg_runner is None:
            self.breakable_cg_runner = BreakableCUDAGraphWrapper(model, backend=self.backend, pool=self.pool)

    def run_pw_graph(self, model: Callable[..., Any], model_inputs: dict[str, Any]) -> Any:
        """Run a PIECEWISE batch: through breakable graphs, or through a model that has pieces of its own."""
        if not self.use_breakable_cg:
            return model(**model_inputs)
        assert self.breakable_cg_runner is not None, "use_breakable_cg without init_breakable_cg_runner"
        return self.breakable_cg_runner(**model_inputs)


def get_uniform_token_count(num_reqs: int, num_tokens: int, max_query_len: int) -> int | None:
    """How many tokens each request has if all have as many as the longest; else None. As vLLM's,
    which since 0.28 asks about prefills too."""
    return max_query_len if max_query_len * num_reqs == num_tokens else None


def _is_compatible(desc: BatchExecutionDescriptor, num_reqs: int, uniform_token_count: int | None) -> bool:
    """Whether a size fits the requests too."""
    is_uniform = desc.uniform_token_count in (None, uniform_token_count)
    return is_uniform and (desc.num_reqs is None or desc.num_reqs >= num_reqs)


def dummy_num_reqs(config: RunnerConfig, num_tokens: int) -> int:
    """How many requests share the tokens of a dummy batch: as many as fit, the last one takes the rest."""
    num_reqs = min(num_tokens, config.max_num_reqs)
    return uniform_num_reqs(num_reqs, num_tokens) if config.uniform_decode else num_reqs


def uniform_num_reqs(num_reqs: int, num_tokens: int) -> int:
    """Lower the number of dummy requests until the tokens can be shared out evenly among them.

    A work-around that an early revision of #35162 had for pipeline stages. No release that was read has it:
    0.19.1, the first read with #35162, gives a FULL decode graph one token count for all requests. Its price:
    the graph then holds fewer requests, a divisor of `num_tokens` where these do not all have one.
    """
    if num_tokens <= num_reqs or num_tokens % num_reqs == 0:
        return num_reqs
    tokens_per_req = -(-num_tokens // num_reqs)
    num_reqs = num_tokens // tokens_per_req
    return num_reqs if num_tokens % num_reqs == 0 else 1
