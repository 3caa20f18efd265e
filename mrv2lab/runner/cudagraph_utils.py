"""Captures graphs for several batch sizes and finds the one for a batch.

Mirrors `vllm/v1/worker/gpu/cudagraph_utils.py`.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch

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
        if config.cudagraph_mode is CUDAGraphMode.NONE:
            return []
        mode, uniform = config.cudagraph_mode, None
        sizes, most = sorted(config.cudagraph_capture_sizes), config.max_num_reqs
        if mode is CUDAGraphMode.FULL_DECODE_ONLY:
            mode, uniform, sizes = CUDAGraphMode.FULL, 1, [n for n in sizes if n <= most]
        is_full = mode is CUDAGraphMode.FULL
        return [
            BatchExecutionDescriptor(mode, n, dummy_num_reqs(config, n) if is_full else None, uniform)
            for n in sizes
        ]

    @torch.inference_mode()
    def capture(
        self, create_forward_fn: CreateForwardFn
    ) -> dict[BatchExecutionDescriptor, AttentionStatePair]:
        """Capture every size, the largest first: smaller ones then fit into its memory.

        Returns:
            For each size, what warm-up and capture ran with, for a speculator that captures afterwards.
        """
        attn_states = {}
        for desc in reversed(self.capture_descs):
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

    def candidate(self, num_tokens: int) -> BatchExecutionDescriptor | None:
        """The smallest size that holds the tokens; no larger one is tried. Mirrors `_candidates`."""
        holding = (desc for desc in self.capture_descs if 0 < num_tokens <= desc.num_tokens)
        return next(holding, None)

    def dispatch(self, num_reqs: int, num_tokens: int) -> BatchExecutionDescriptor:
        """The smallest captured size if it holds the batch, or mode NONE for running it eagerly."""
        desc = self.candidate(num_tokens) if self._graphs_captured else None
        if desc is not None and _is_compatible(desc, num_reqs, num_tokens):
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
