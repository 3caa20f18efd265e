"""Captures graphs for several batch sizes and finds the one for a batch.

Mirrors `vllm/v1/worker/gpu/cudagraph_utils.py`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch

from mrv2lab.graphs import CapturedGraph, capture, new_pool
from mrv2lab.runner.config import CUDAGraphMode, RunnerConfig
from mrv2lab.runner.forward_context import AttentionMetadata


@dataclass(frozen=True)
class BatchExecutionDescriptor:
    """Shape and mode of a batch: what capture and run time must agree on. Mirrors its namesake."""

    cg_mode: CUDAGraphMode
    num_tokens: int
    num_reqs: int


class AttentionStatePair(NamedTuple):
    """The attention metadata that warm-up and capture of one size ran with. Mirrors its namesake."""

    warmup: AttentionMetadata
    captured: AttentionMetadata


class CreateForwardFn(Protocol):
    """Prepares the inputs of a size, outside the graph. Mirrors its namesake.

    Called with `warmup=True` for the eager pass and with `warmup=False` for the captured one.
    Returns the forward pass and the attention metadata it will use.
    """

    def __call__(
        self, desc: BatchExecutionDescriptor, warmup: bool
    ) -> tuple[Callable[[], None], AttentionMetadata]: ...


class CudaGraphManager:
    """One graph for each capture size, all in one pool. Mirrors `CudaGraphManager`."""

    def __init__(self, config: RunnerConfig, backend: str):
        self.backend = backend
        self.graphs: dict[BatchExecutionDescriptor, CapturedGraph] = {}
        self.pool = new_pool(backend)
        self.capture_descs = self._init_capture_descs(config)

    @staticmethod
    def _init_capture_descs(config: RunnerConfig) -> list[BatchExecutionDescriptor]:
        if config.cudagraph_mode is CUDAGraphMode.NONE:
            return []
        sizes = sorted(config.cudagraph_capture_sizes)
        return [
            BatchExecutionDescriptor(
                config.cudagraph_mode, n, uniform_num_reqs(min(n, config.max_num_reqs), n)
            )
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
            warm_up()  # compiling a kernel has no place in a graph
            forward_fn, captured_state = create_forward_fn(desc, warmup=False)
            self.graphs[desc] = capture(forward_fn, backend=self.backend, pool=self.pool)
            attn_states[desc] = AttentionStatePair(warmup_state, captured_state)
        return attn_states

    def dispatch(self, num_reqs: int, num_tokens: int) -> BatchExecutionDescriptor:
        """The smallest captured size that holds the batch, or mode NONE for running it eagerly."""
        for desc in self.capture_descs:
            if desc in self.graphs and desc.num_tokens >= num_tokens and desc.num_reqs >= num_reqs:
                return desc
        return BatchExecutionDescriptor(CUDAGraphMode.NONE, num_tokens, num_reqs)

    def run_fullgraph(self, desc: BatchExecutionDescriptor) -> None:
        """Replay the graph of `desc` on what the input buffers hold now."""
        self.graphs[desc].replay()


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
