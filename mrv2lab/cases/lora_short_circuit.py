"""LoRA kernels that a captured graph never contains. vLLM #43314, after #43139; replaced by #35536.

`lora_shrink` and `lora_expand` begin with `if no_lora_flag_cpu.item(): return`: a decision of the HOST.
A dummy batch maps every token to adapter 0, "none", so the flag is set while graphs are captured. The
kernels are not launched, the graph holds none, and replay leaves the adapters out for ever: no error,
only answers of a model that nobody asked for.
"""

from functools import lru_cache

import torch

from mrv2lab.bench import measure
from mrv2lab.cases.base import SEED, Case, Observation, Variant
from mrv2lab.results import Latency
from mrv2lab.runner import (
    CUDAGraphMode,
    Engine,
    InputBatch,
    LoRAMapping,
    LoRAModelManager,
    ModelRunner,
    ModelRunnerOutput,
    Request,
    RunnerConfig,
    SamplingParams,
)

VOCAB_SIZE = RunnerConfig.vocab_size


def zero_mapping(adapter_manager: LoRAModelManager, input_batch: InputBatch) -> None:
    """Map every token of the dummy batch to "no adapter", so that kernels leave early. What #43139 did."""
    adapter_manager.set_adapter_mapping(
        LoRAMapping(
            index_mapping=(0,) * input_batch.num_tokens_after_padding,
            prompt_mapping=(0,) * input_batch.num_reqs,
        )
    )


def forced_launch(adapter_manager: LoRAModelManager, input_batch: InputBatch) -> None:
    """Map every token to "no adapter", but let the host launch the kernels all the same. What #43314 did."""
    adapter_manager.set_adapter_mapping(
        LoRAMapping(
            index_mapping=(0,) * input_batch.num_tokens_after_padding,
            prompt_mapping=(0,) * input_batch.num_reqs,
        )
    )
    for punica_wrapper in adapter_manager.punica_wrapper_mapping.values():
        for kernel_meta in (punica_wrapper.token_mapping_meta, punica_wrapper.prompt_mapping_meta):
            # The host no longer returns early; on the device every block still does, at `lora_id == -1`.
            kernel_meta.no_lora_flag_cpu[0] = False
            kernel_meta.num_active_loras_cpu[0] = 1


def eager(adapter_manager: LoRAModelManager, input_batch: InputBatch) -> None:
    """The same as `zero_mapping`, in a runner that captures nothing: the host decides afresh in each step."""
    zero_mapping(adapter_manager, input_batch)


def observe(variant: Variant, backend: str, shape: dict[str, int]) -> Observation:
    """Run the workload with the variant, and find its eager reference."""
    mode = CUDAGraphMode.FULL if variant.uses_graphs else CUDAGraphMode.NONE
    runner = ModelRunner(make_config(shape, mode), backend, variant.fn)
    runner.warm_up_and_capture()
    steps = serve(runner, shape)
    kernels = decode_kernels(runner, shape["batch_size"])
    return Observation(
        steps=steps,
        reference=reference(backend, *shape.items()),
        kernels=kernels,
        metrics={
            "graph_nodes": sum(kernels.values()),
            "lora_kernels_in_graph": sum(n for name, n in kernels.items() if name.startswith("_lora_")),
            "replayed_steps": sum(step.num_replays for step in steps),
        },
        measure=lambda: decode_latency(runner, backend, shape),
    )


def decode_kernels(runner: ModelRunner, batch_size: int) -> dict[str, int]:
    """Nodes by name in the graph that a decode step of this many requests replays; empty without graphs."""
    desc = runner.cudagraph_manager.dispatch(batch_size, batch_size)
    graph = runner.cudagraph_manager.graphs.get(desc)
    return dict(graph.kernels()) if graph else {}


@lru_cache(maxsize=16)
def reference(backend: str, *shape: tuple[str, int]) -> list[ModelRunnerOutput]:
    """The workload, run eagerly: what every variant is compared with."""
    runner = ModelRunner(make_config(dict(shape), CUDAGraphMode.NONE), backend)
    return serve(runner, dict(shape))


def make_config(shape: dict[str, int], mode: CUDAGraphMode) -> RunnerConfig:
    """The runner for a shape."""
    return RunnerConfig(
        max_lora_rank=shape["rank"], num_layers=shape["num_layers"], cudagraph_mode=mode, seed=SEED
    )


def workload(shape: dict[str, int]) -> list[Request]:
    """More requests than run at once, of unequal length, so that adapters and batch size keep changing.

    Adapters go 1, 2, none, 3 and round again. All tokens are forced: every run sees the same ones.
    """
    generator = torch.Generator().manual_seed(SEED)

    def tokens(n: int) -> tuple[int, ...]:
        return tuple(torch.randint(VOCAB_SIZE, (n,), generator=generator).tolist())

    first, second = shape["num_steps"] - shape["num_steps"] // 3, shape["num_steps"] // 3
    lengths = [first + i % 3 for i in range(shape["batch_size"])] + [
        second - i % 3 for i in range(shape["batch_size"])
    ]
    return [
        Request(
            req_id=f"request-{i}",
            prompt_token_ids=tokens(5 + i % 4),
            max_tokens=length,
            lora_id=(1, 2, 0, 3)[i % 4],
            sampling=SamplingParams(forced_token_ids=tokens(length)),
        )
        for i, length in enumerate(lengths)
    ]


def serve(runner: ModelRunner, shape: dict[str, int]) -> list[ModelRunnerOutput]:
    """Serve the workload, `batch_size` requests at a time; returns every step."""
    engine, waiting = Engine(runner), workload(shape)

    def step() -> ModelRunnerOutput | None:
        while waiting and engine.num_unfinished < shape["batch_size"]:
            engine.add_request(waiting.pop(0))
        return engine.step()

    return list(iter(step, None))


def decode_latency(runner: ModelRunner, backend: str, shape: dict[str, int]) -> Latency | None:
    """Time the forward pass of one decode step at the full batch size; None on the emulator."""
    if backend != "cuda":
        return None
    engine = Engine(runner)
    for request in workload(shape)[: shape["batch_size"]]:
        engine.add_request(request)
    engine.step()
    scheduler_output = engine.scheduler.schedule()
    desc = runner.dispatch(scheduler_output)
    with torch.inference_mode():
        input_batch = runner.prepare_inputs(scheduler_output, desc)
        return measure(lambda: runner.run_model(desc, input_batch), backend)


CASE = Case(
    name="lora_short_circuit",
    title="LoRA kernels that a captured graph never contains",
    upstream="vllm-project/vllm #43314 (fix), #43139 (cause), #35536 (replacement)",
    story=(
        "A dummy batch without adapters makes the host skip the LoRA kernels while graphs are captured. "
        "Every replay then skips them too, whatever adapters the batch asks for."
    ),
    variants=(
        Variant(eager, "baseline", "correct", uses_graphs=False),
        Variant(zero_mapping, "buggy", "wrong"),
        Variant(forced_launch, "fixed", "correct"),
    ),
    limits={"batch_size": (4, 1, 8), "rank": (8, 1, 32), "num_steps": (18, 18, 40), "num_layers": (2, 1, 8)},
    observe=observe,
)
