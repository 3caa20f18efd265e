"""FlashMLA's lazy plan, and graphs that break at attention, in the engine: a small DeepSeek shape.

One variant has a small Qwen3 instead: its attention is one that 0.23.0 does not break out.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from mrv2lab.crash import WILD_POINTER, Crash
from mrv2lab.live.engine import Graphs, make_engine, serve
from mrv2lab.live.flash_mla import errors_by_length
from mrv2lab.live.models import make_mla_config, make_qwen3, use_spread_weights
from mrv2lab.live.run import Seen, Variant, wrap
from mrv2lab.upstream.probes.breakable_graph import UNROUTED
from mrv2lab.upstream.probes.flashmla_lazy_init import CAPTURED_STATE, ONE_STATE, PLANNER, FreshStates

PROMPT_LENGTHS = (5, 130, 700, 1400)
"""One page to 23: the dummy batch, for which graphs are captured, has one page each."""

CRASH = Crash(WILD_POINTER, within="spec_decode/autoregressive/cudagraph_utils.py in capture")
"""The speculator's warm-up attends by a plan of random numbers; its capture begins by waiting for that."""

BREAKABLE = {"VLLM_USE_BREAKABLE_CUDAGRAPH": "1"}

CAPTURE_SIZES = (1, 2, 4, 8)


def start(folder: Path, cudagraph_mode: str = "FULL", **options: Any) -> Any:
    """An engine on weights at which attention matters."""
    use_spread_weights()
    return make_engine(
        str(make_mla_config(folder / "model")), cudagraph_mode, CAPTURE_SIZES, load_format="dummy",
        attention_backend="FLASHMLA", block_size=64, **options,
    )  # fmt: skip


def start_plain(folder: Path, cudagraph_mode: str = "PIECEWISE") -> Any:
    """An engine with plain attention, a Qwen3: `unified_attention_with_output` is no break in 0.23.0.

    From 0.24.0 on it is (`model_executor/layers/attention/attention.py`).
    """
    return make_engine(str(make_qwen3(folder / "model")), cudagraph_mode, CAPTURE_SIZES)


def observe(
    folder: Path,
    graphs: Graphs,
    cudagraph_mode: str = "FULL",
    started: Callable[..., Any] = start,
    **options: Any,
) -> Seen:
    """Start the engine, then serve."""
    llm = started(folder, cudagraph_mode, **options)
    costs = {"start_up_s": llm.start_up_s, "graph_pool_mib": graphs.pool_mib()}
    kernels = graphs.kernels(graphs.of_largest_size(llm)) if graphs.made else {}
    served = serve(llm, graphs, PROMPT_LENGTHS)
    reference = serve(llm, graphs, PROMPT_LENGTHS, eager=True)
    metrics = {"graphs": float(len(graphs.made)), "planner_nodes": float(kernels.get(PLANNER, 0))}
    return Seen(served, reference, kernels, metrics, costs)


def observe_speculation(
    folder: Path, graphs: Graphs, cudagraph_mode: str = "FULL", shared: bool = False
) -> Seen:
    """The same with a layer that drafts one token (MTP), so that the speculator is captured as well.

    Args:
        shared: of the kernel alone, called afterwards: whether its capture is given the warm-up's metadata.
    """
    speculation = {"method": "mtp", "num_speculative_tokens": 1}
    seen = observe(folder, graphs, cudagraph_mode, speculative_config=speculation)
    return replace(seen, metrics=seen.metrics | errors_by_length(shared=shared))


def observe_random_plan(folder: Path, graphs: Graphs) -> Seen:
    """The same, where memory that a capture allocates and nobody writes holds random numbers.

    It holds what earlier graphs left there. In a young process that is often zeros.
    """
    from vllm.v1.worker.gpu.model_runner import GPUModelRunner

    wrap(GPUModelRunner, "capture_model", scrambled)
    return observe_speculation(folder, graphs)


def scrambled(capture_model: Callable[[Any], int]) -> Callable[[Any], int]:
    """Before `capture_model`, let one graph leave random numbers in the pool that all graphs share."""
    import torch
    from vllm.platforms import current_platform

    def fill() -> None:
        blocks = [torch.empty(n, dtype=torch.int32, device="cuda") for n in (*[1 << 17] * 8, 1 << 22)]
        for block in blocks:
            block.random_(1, 1 << 30)

    def capture(self: Any) -> int:
        fill()
        self._scrambling = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._scrambling, pool=current_platform.get_global_graph_pool()):
            fill()
        self._scrambling.replay()
        torch.cuda.synchronize()
        return capture_model(self)

    return capture


def capture_speculator_with(states: Callable[[Any, Any], Any]) -> None:
    """For the rest of this process, with what `states` makes of the runner and what the target has kept."""
    from vllm.v1.worker.gpu.model_runner import GPUModelRunner

    def around(capture_model: Callable[[Any], int]) -> Callable[[Any], int]:
        def capture(self: Any) -> int:
            manager = self.speculator.prefill_cudagraph_manager
            original = manager.capture
            manager.capture = lambda forward, kept, **more: original(forward, states(self, kept), **more)
            return capture_model(self)

        return capture

    wrap(GPUModelRunner, "capture_model", around)


def observe_fresh_states(folder: Path, graphs: Graphs) -> Seen:
    """The same, but the speculator builds states of its own, as releases from 0.26 on do."""
    capture_speculator_with(FreshStates)
    return observe_random_plan(folder, graphs)


def observe_downgraded(folder: Path, graphs: Graphs) -> Seen:
    """FULL graphs of decodes, of a FlashMLA that states no level of support: the default is none."""
    from vllm.v1.attention.backend import AttentionMetadataBuilder
    from vllm.v1.attention.backends.mla.flashmla import FlashMLAMetadataBuilder

    FlashMLAMetadataBuilder._cudagraph_support = AttentionMetadataBuilder._cudagraph_support
    return observe(folder, graphs, "FULL_DECODE_ONLY")


FLASHMLA_LAZY_INIT = {
    "eager": Variant(partial(observe_speculation, cudagraph_mode="NONE")),
    "shared_state": Variant(partial(observe_speculation, shared=True), (ONE_STATE,)),
    "captured_reused": Variant(observe_random_plan, (CAPTURED_STATE,), crash=CRASH),
    "state_pair": Variant(observe_random_plan),
    "fresh_always": Variant(observe_fresh_states),
}
BREAKABLE_GRAPH = {
    "eager": Variant(partial(observe, cudagraph_mode="NONE")),
    "unrouted": Variant(partial(observe, cudagraph_mode="PIECEWISE"), (UNROUTED,), BREAKABLE),
    "whole_graph": Variant(partial(observe, cudagraph_mode="PIECEWISE", started=start_plain), env=BREAKABLE),
    "downgraded": Variant(observe_downgraded),
    "piecewise": Variant(partial(observe, cudagraph_mode="PIECEWISE", compilation_mode=3)),
    "breakable": Variant(partial(observe, cudagraph_mode="PIECEWISE"), env=BREAKABLE),
    "full_graph": Variant(observe),
}
