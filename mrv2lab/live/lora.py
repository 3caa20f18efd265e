"""Both LoRA bugs in the engine: a random Qwen3, one adapter on all its projections."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from operator import eq
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch

from mrv2lab.live.engine import Graphs, close, make_engine, runner_of, serve, without_graphs
from mrv2lab.live.models import make_adapter, make_qwen3
from mrv2lab.live.run import Seen, Variant, wrap
from mrv2lab.live.train import PERIOD, lines, make_eagle_head, make_trained_qwen3
from mrv2lab.upstream.platform import LOUD_BYTE, unwritten_memory
from mrv2lab.upstream.probes.lora_device_assert import CRASH, WITHOUT_MAPPING
from mrv2lab.upstream.probes.lora_short_circuit import WITHOUT_FLAGS

PROMPT_LENGTHS = (5, 9, 17, 33)
NUM_PROMPTS = 100


def start(folder: Path, cudagraph_mode: str = "FULL") -> tuple[Any, Any]:
    """An engine, and what a request brings along to be served with its adapter."""
    model = make_qwen3(folder / "model")
    adapter = adapter_request(make_adapter(folder / "adapter", model))
    llm = make_engine(str(model), cudagraph_mode, (1, 2, 4), enable_lora=True, max_loras=1, max_lora_rank=16)
    return llm, adapter


def observe(folder: Path, graphs: Graphs, cudagraph_mode: str = "FULL") -> Seen:
    """Start the engine, then serve every request with the adapter."""
    llm, adapter = start(folder, cudagraph_mode)
    kernels = graphs.kernels(graphs.of_largest_size(llm)) if graphs.made else {}
    served = serve(llm, graphs, PROMPT_LENGTHS, lora_request=adapter)
    reference = serve(llm, graphs, PROMPT_LENGTHS, lora_request=adapter, eager=True)
    lora = sum(count for name, count in kernels.items() if name.startswith("_lora_"))
    metrics = {"graph_nodes": float(sum(kernels.values())), "lora_nodes": float(lora)}
    return Seen(served, reference, kernels, metrics | walked(llm))


def walked(llm: Any) -> dict[str, float]:
    """How many wrappers a dummy run finds in the mapping that #43314 walks, and how long the walk takes."""
    wrappers = runner_of(llm).lora_manager._adapter_manager.punica_wrapper_mapping
    start, num_walks = perf_counter(), 1000
    for _ in range(num_walks):
        for wrapper in {id(wrapper): wrapper for wrapper in wrappers.values()}.values():
            for meta in (wrapper.token_mapping_meta, wrapper.prompt_mapping_meta):
                meta.no_lora_flag_cpu[0] = meta.no_lora_flag_cpu[0]
                meta.num_active_loras_cpu[0] = meta.num_active_loras_cpu[0]
    walk_us = (perf_counter() - start) / num_walks * 1e6
    distinct = float(len({id(wrapper) for wrapper in wrappers.values()}))
    return {"wrappers": float(len(wrappers)), "distinct_wrappers": distinct, "walk_us": walk_us}


def adapter_request(adapter: Path) -> Any:
    """What a request brings along to be served with an adapter."""
    from vllm.lora.request import LoRARequest

    return LoRARequest("adapter", 1, str(adapter))


def observe_matches(folder: Path, graphs: Graphs) -> Seen:
    """The same, then the shape of upstream's test: 100 prompts, the adapter alone against adapter and drafts.

    Its weights are trained, so that every token is right or wrong by itself.
    """
    seen = observe(folder / "random", graphs)
    return replace(seen, metrics=seen.metrics | matches(folder / "trained", graphs))


def matches(folder: Path, graphs: Graphs) -> dict[str, float]:
    """How many of `NUM_PROMPTS` answers are the same, or right, token for token."""
    model, adapter = make_trained_qwen3(folder)
    lora_request = adapter_request(adapter)
    head = str(make_eagle_head(folder / "head", model))

    def engine(**options: Any) -> Any:
        return make_engine(str(model), "FULL", (1, 2, 4, 8), enable_lora=True, max_lora_rank=16, **options)

    alone = engine()
    with without_graphs(runner_of(alone)):
        eager = answers(alone, lora_request)
    replayed = answers(alone, lora_request)
    close(alone, graphs)
    drafting = engine(speculative_config={"method": "eagle", "model": head, "num_speculative_tokens": 1})
    drafted = answers(drafting, lora_request)
    return {
        "prompts": float(NUM_PROMPTS),
        "matches": float(sum(map(eq, replayed, drafted))),
        "right_eager": float(sum(map(eq, eager, expected()))),
        "right_lora": float(sum(map(eq, replayed, expected()))),
        "right_lora_and_drafts": float(sum(map(eq, drafted, expected()))),
    }


def prompts() -> list[list[int]]:
    """The first round of a line for each prompt."""
    return lines(NUM_PROMPTS, 1, torch.Generator().manual_seed(3))[:, :PERIOD].tolist()


def expected() -> list[list[int]]:
    """What the adapter has learnt to say. Lengths differ, so that batches mix old and new requests."""
    whole = lines(NUM_PROMPTS, 1, torch.Generator().manual_seed(3))[:, PERIOD:].tolist()
    return [line[: 8 + i % 25] for i, line in enumerate(whole)]


def answers(llm: Any, lora_request: Any) -> list[list[int]]:
    """What the engine generates, four requests at a time."""
    from vllm import SamplingParams

    params = [
        SamplingParams(max_tokens=len(line), temperature=0, ignore_eos=True, detokenize=False)
        for line in expected()
    ]
    requests = [{"prompt_token_ids": prompt} for prompt in prompts()]
    outputs = llm.generate(requests, params, use_tqdm=False, lora_request=lora_request)
    return [list(output.outputs[0].token_ids) for output in outputs]


def observe_start_up(folder: Path, graphs: Graphs) -> Seen:
    """The same without graphs, where memory that nobody wrote holds a loud pattern.

    On a fresh GPU it often holds zeros, and the dummy run gets away with it.
    """
    import vllm.lora.punica_wrapper.punica_base as punica_base

    def filled(init: Callable[..., None]) -> Callable[..., None]:
        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
            with unwritten_memory(LOUD_BYTE):
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


observe_eager = partial(observe, cudagraph_mode="NONE")

LORA_DEVICE_ASSERT = {
    "dummy_adapters": Variant(observe_dummy_adapters, (WITHOUT_MAPPING,)),
    "unwritten": Variant(observe_start_up, (WITHOUT_MAPPING,), crash=CRASH),
    "zero_mapping": Variant(observe_start_up),
}
LORA_SHORT_CIRCUIT = {
    "eager": Variant(observe_eager),
    "zero_mapping": Variant(observe_matches, (WITHOUT_FLAGS,)),
    "forced_launch": Variant(observe_matches),
}
