"""Both LoRA bugs in the engine: a random Qwen3, one adapter on all its projections."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from mrv2lab.graphs.emulated import POISON
from mrv2lab.live.engine import Graphs, make_engine, serve
from mrv2lab.live.models import make_adapter, make_qwen3
from mrv2lab.live.run import Seen, Variant, wrap
from mrv2lab.upstream.platform import unwritten_memory
from mrv2lab.upstream.probes.lora_device_assert import WITHOUT_MAPPING
from mrv2lab.upstream.probes.lora_short_circuit import WITHOUT_FLAGS

PROMPT_LENGTHS = (5, 9, 17, 33)


def observe(folder: Path, graphs: Graphs, cudagraph_mode: str = "FULL") -> Seen:
    """Start the engine, then serve every request with the adapter."""
    from vllm.lora.request import LoRARequest

    model = make_qwen3(folder / "model")
    adapter = LoRARequest("adapter", 1, str(make_adapter(folder / "adapter", model)))
    llm = make_engine(str(model), cudagraph_mode, (1, 2, 4), enable_lora=True, max_loras=1, max_lora_rank=16)
    kernels = graphs.kernels(graphs.of_largest_size(llm)) if graphs.made else {}
    served = serve(llm, graphs, PROMPT_LENGTHS, lora_request=adapter)
    reference = serve(llm, graphs, PROMPT_LENGTHS, lora_request=adapter, eager=True)
    lora = sum(count for name, count in kernels.items() if name.startswith("_lora_"))
    metrics = {"graph_nodes": float(sum(kernels.values())), "lora_nodes": float(lora)}
    return Seen(served, reference, kernels, metrics)


def observe_start_up(folder: Path, graphs: Graphs) -> Seen:
    """The same without graphs, where memory that nobody wrote holds a loud pattern.

    On a fresh GPU it often holds zeros, and the dummy run gets away with it.
    """
    import vllm.lora.punica_wrapper.punica_base as punica_base

    def filled(init: Callable[..., None]) -> Callable[..., None]:
        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
            with unwritten_memory(POISON):
                init(self, *args, **kwargs)

        return __init__

    wrap(punica_base.PunicaWrapperBase, "__init__", filled)
    return observe(folder, graphs, "NONE")


def observe_dummy_adapters(folder: Path, graphs: Graphs) -> Seen:
    """The same with an adapter in every dummy run, by the method that #35536 takes from the V1 runner."""
    from vllm.v1.worker.gpu.model_runner import GPUModelRunner

    def with_adapters(dummy_run: Callable[..., Any]) -> Callable[..., Any]:
        def _dummy_run(self: Any, num_tokens: int, *args: Any, **kwargs: Any) -> Any:
            num_reqs = min(num_tokens, self.max_num_reqs)
            tokens = np.full(num_reqs, num_tokens // num_reqs, np.int32)
            tokens[-1] += num_tokens % num_reqs
            ones = np.ones(num_reqs, np.int32)
            with self.maybe_dummy_run_with_lora(self.lora_config, tokens, ones, num_active_loras=1):
                return dummy_run(self, num_tokens, *args, **kwargs)

        return _dummy_run

    wrap(GPUModelRunner, "_dummy_run", with_adapters)
    return observe_start_up(folder, graphs)


def observe_eager(folder: Path, graphs: Graphs) -> Seen:
    """No graphs."""
    return observe(folder, graphs, "NONE")


LORA_DEVICE_ASSERT = {
    "dummy_adapters": Variant(observe_dummy_adapters, (WITHOUT_MAPPING,), uses_graphs=False),
    "unwritten": Variant(observe_start_up, (WITHOUT_MAPPING,), uses_graphs=False),
    "zero_mapping": Variant(observe_start_up, uses_graphs=False),
}
LORA_SHORT_CIRCUIT = {
    "eager": Variant(observe_eager, uses_graphs=False),
    "zero_mapping": Variant(observe, (WITHOUT_FLAGS,)),
    "forced_launch": Variant(observe),
}
