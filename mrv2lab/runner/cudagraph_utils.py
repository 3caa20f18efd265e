"""Captures graphs for several batch sizes and finds the one for a batch.

Mirrors `vllm/v1/worker/gpu/cudagraph_utils.py`.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch

from mrv2lab import progress
from mrv2lab.graphs import CapturedGraph, capture, new_pool
from mrv2lab.graphs.breakable import BreakableCUDAGraphWrapper
from mrv2lab.runner.config import CUDAGraphMode, RunnerConfig
from mrv2lab.runner.forward_context import AttentionMetadata


@dataclass(frozen=True)
class BatchExecutionDescriptor:
    """Shape and mode of a batch: what capture and run time must agree on. Mirrors its namesake."""

    cg_mode: CUDAGraphMode
    num_tokens: int
    num_reqs: int | None  # None: requests are not padded, because no PIECEWISE graph sees them
    uniform_token_count: int | None = None  # None: requests may have any number of tokens


class AttentionStatePair(NamedTuple):
    """The attention metadata that warm-up and capture of one size ran with. Mirrors its namesake."""

    warmup: AttentionMetadata
    captured: AttentionMetadata


AttentionStatesOfSize = AttentionStatePair | Callable[[], AttentionMetadata]
"""What is kept for the passes of one size: their metadata, or the way to build it when a pass runs."""


def attention_state(states: AttentionStatesOfSize, *, warmup: bool) -> AttentionMetadata:
    """The metadata of one pass, taken out of a pair or built now."""
    if isinstance(states, AttentionStatePair):
        return states.warmup if warmup else states.captured
    return states()


class CreateForwardFn(Protocol):
    """Prepares the inputs of a size, outside the graph. Mirrors its namesake.

    Called with `warmup=True` for the eager pass and with `warmup=False` for the captured one.
    Returns the forward pass, which is told how to run, and the attention metadata it will use. A
    PIECEWISE size is prepared once, for both passes.
    """

    def __call__(
        self, desc: BatchExecutionDescriptor, warmup: bool
    ) -> tuple[Callable[[CUDAGraphMode], None], AttentionMetadata]: ...


class CudaGraphManager:
    """One graph for each capture size, all in one pool. Mirrors `CudaGraphManager`.

    Attributes:
        graphs: the FULL ones. PIECEWISE graphs belong to whoever captures them inside `run_pw_graph`.
        use_breakable_cg: whether PIECEWISE batches go through breakable graphs. If not, the model itself
            has to replay pieces, as a compiled one does.
        breakable_cg_runner: made by `init_breakable_cg_runner`.
    """

    def __init__(self, config: RunnerConfig, backend: str):
        self.backend = backend
        self.graphs: dict[BatchExecutionDescriptor, CapturedGraph] = {}
        self.pool = new_pool(backend)
        self.config = config
        self.capture_descs = self._init_capture_descs(config)
        self._graphs_captured = False
        self.use_breakable_cg = False
        self.breakable_cg_runner: BreakableCUDAGraphWrapper | None = None

    def set_mode(self, mode: CUDAGraphMode) -> None:
        """Capture in another mode than the configured one; before anything is captured."""
        self.capture_descs = self._init_capture_descs(replace(self.config, cudagraph_mode=mode))

    @staticmethod
    def _init_capture_descs(config: RunnerConfig) -> list[BatchExecutionDescriptor]:
        mode, descs = config.cudagraph_mode, []
        for n in sorted(config.cudagraph_capture_sizes):
            if mode.separate_routine() and n <= config.max_num_reqs:
                descs.append(BatchExecutionDescriptor(mode.decode_mode(), n, n, uniform_token_count=1))
            if (mixed_mode := mode.mixed_mode()) is not CUDAGraphMode.NONE:
                is_full = mixed_mode is CUDAGraphMode.FULL
                descs.append(
                    BatchExecutionDescriptor(mixed_mode, n, dummy_num_reqs(config, n) if is_full else None)
                )
        return descs

    @property
    def capture_order(self) -> list[BatchExecutionDescriptor]:
        """PIECEWISE first, as it needs most memory, and the largest size first: the others fit into it."""
        return sorted(self.capture_descs, key=lambda d: (d.cg_mode is CUDAGraphMode.FULL, -d.num_tokens))

    @torch.inference_mode()
    def capture(
        self, create_forward_fn: CreateForwardFn
    ) -> dict[BatchExecutionDescriptor, AttentionStatePair]:
        """Capture every size in `capture_order`.

        Returns:
            For each size, what warm-up and capture ran with, for a speculator that captures afterwards.
        """
        attn_states = {}
        for num_captured, desc in enumerate(self.capture_order):
            progress.tell("capturing", num_captured / len(self.capture_order))
            warm_up, warmup_state = create_forward_fn(desc, warmup=True)
            warm_up(CUDAGraphMode.NONE)  # compiling a kernel has no place in a graph
            if desc.cg_mode is CUDAGraphMode.PIECEWISE:
                warm_up(CUDAGraphMode.PIECEWISE)
                attn_states[desc] = AttentionStatePair(warmup_state, warmup_state)
                continue
            forward_fn, captured_state = create_forward_fn(desc, warmup=False)
            self.graphs[desc] = capture(
                partial(forward_fn, CUDAGraphMode.NONE), backend=self.backend, pool=self.pool
            )
            attn_states[desc] = AttentionStatePair(warmup_state, captured_state)
        self._graphs_captured = True
        return attn_states

    def candidates(self, num_tokens: int) -> list[BatchExecutionDescriptor]:
        """What is captured at the smallest size that holds the tokens, decodes first. No larger one is tried.

        Mirrors `_candidates`.
        """
        sizes = [desc.num_tokens for desc in self.capture_descs if 0 < num_tokens <= desc.num_tokens]
        return [desc for desc in self.capture_descs if desc.num_tokens == min(sizes, default=0)]

    def dispatch(self, num_reqs: int, num_tokens: int) -> BatchExecutionDescriptor:
        """What is captured at that size if it fits the batch, or mode NONE for running it eagerly."""
        for desc in self.candidates(num_tokens) if self._graphs_captured else []:
            if _is_compatible(desc, num_reqs, num_tokens):
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
        """Run a PIECEWISE batch: through breakable graphs, or through a model that has pieces of its own.

        Raises:
            AssertionError: breakable graphs were asked for and `init_breakable_cg_runner` was not called.
        """
        if not self.use_breakable_cg:
            return model(**model_inputs)
        assert self.breakable_cg_runner is not None, "use_breakable_cg without init_breakable_cg_runner"
        return self.breakable_cg_runner(**model_inputs)


def _is_compatible(desc: BatchExecutionDescriptor, num_reqs: int, num_tokens: int) -> bool:
    """Whether a size fits the requests too. As many tokens as requests: one token for each of them."""
    is_uniform = desc.uniform_token_count is None or num_reqs == num_tokens
    return is_uniform and (desc.num_reqs is None or desc.num_reqs >= num_reqs)


def dummy_num_reqs(config: RunnerConfig, num_tokens: int) -> int:
    """How many requests share the tokens of a dummy batch: as many as fit, the last one takes the rest."""
    num_reqs = min(num_tokens, config.max_num_reqs)
    return uniform_num_reqs(num_reqs, num_tokens) if config.uniform_decode else num_reqs


def uniform_num_reqs(num_reqs: int, num_tokens: int) -> int:
    """Lower the number of dummy requests until the tokens can be shared out evenly among them.

    The work-around of #35162, written for pipeline stages; newer releases give a FULL decode graph one
    token count for every request instead. Its price: the graph then holds fewer requests.

    Returns:
        At most `num_reqs`, and a divisor of `num_tokens`.
    """
    if num_tokens <= num_reqs or num_tokens % num_reqs == 0:
        return num_reqs
    tokens_per_req = -(-num_tokens // num_reqs)
    num_reqs = num_tokens // tokens_per_req
    return num_reqs if num_tokens % num_reqs == 0 else 1
