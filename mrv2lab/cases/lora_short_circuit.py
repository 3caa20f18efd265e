"""LoRA kernels that a captured graph never contains. vLLM #43314, after #43139; replaced by #35536.

`lora_shrink` and `lora_expand` begin with `if no_lora_flag_cpu.item(): return`: a decision of the HOST.
A dummy run maps every token to adapter 0, "none", and leaves the flag set. Capture, which programs no
mapping, finds it so: the kernels are not launched, the graph holds none, and replay leaves the adapters out
for ever. No error, only answers of a model that nobody asked for.
"""

from dataclasses import replace
from functools import lru_cache

from mrv2lab.audit import AuditReport
from mrv2lab.cases.audited import audit_decode_step
from mrv2lab.cases.base import SEED, Case, Observation, Variant
from mrv2lab.cases.exercises.lora_short_circuit import EXERCISE
from mrv2lab.cases.workload import decode_kernels, decode_latency, serve, serve_idly, workload
from mrv2lab.runner import (
    CUDAGraphMode,
    InputBatch,
    LoRAMapping,
    LoRAModelManager,
    ModelRunner,
    ModelRunnerOutput,
    RunnerConfig,
)


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
    config = make_config(shape, mode)
    runner = ModelRunner(config, backend, variant.fn)
    runner.warm_up_and_capture()
    steps = serve(runner, workload(shape), shape["batch_size"])
    kernels = decode_kernels(runner, shape["batch_size"])
    return Observation(
        steps=steps,
        reference=reference(backend, *shape.items()),
        config=config,
        idle=serve_idly(runner, config, workload(shape), shape["batch_size"]),
        kernels=kernels,
        metrics={
            "graph_nodes": sum(kernels.values()),
            "lora_kernels_in_graph": sum(n for name, n in kernels.items() if name.startswith("_lora_")),
            "replayed_steps": sum(step.num_replays for step in steps),
        },
        measure=lambda: decode_latency(runner, backend, shape),
    )


@lru_cache(maxsize=16)
def reference(backend: str, *shape: tuple[str, int]) -> list[ModelRunnerOutput]:
    """The workload, run eagerly: what every variant is compared with."""
    runner = ModelRunner(make_config(dict(shape), CUDAGraphMode.NONE), backend)
    return serve(runner, workload(dict(shape)), dict(shape)["batch_size"])


def audited(variant: Variant, backend: str, shape: dict[str, int], seed: int) -> AuditReport:
    """Audit a decode step in which most requests have an adapter."""
    mode = CUDAGraphMode.FULL if variant.uses_graphs else CUDAGraphMode.NONE
    config = replace(make_config(shape, mode), seed=seed, cudagraph_capture_sizes=(shape["batch_size"],))
    runner = ModelRunner(config, backend, variant.fn)
    return audit_decode_step(runner, variant, shape, seed, adapters=True)


def make_config(shape: dict[str, int], mode: CUDAGraphMode) -> RunnerConfig:
    """The runner for a shape."""
    return RunnerConfig(
        max_lora_rank=shape["rank"],
        num_layers=shape["num_layers"],
        specialize_active_lora=bool(shape["specialize_active_lora"]),
        cudagraph_mode=mode,
        seed=SEED,
    )


CASE = Case(
    name="lora_short_circuit",
    title="LoRA kernels that a captured graph never contains",
    upstream="vllm-project/vllm #43314 (fix), #43139 (cause), #35536 (replacement)",
    story=(
        "A dummy run without adapters leaves a flag that makes the host skip the LoRA kernels at capture. "
        "Every replay then skips them too, whatever adapters the batch asks for."
    ),
    variants=(
        Variant(eager, "baseline", "correct", uses_graphs=False),
        Variant(zero_mapping, "buggy", "wrong", finding=("frozen-host-value", "no_lora_flag_cpu")),
        Variant(forced_launch, "fixed", "correct"),
    ),
    limits={
        "batch_size": (4, 1, 8),
        "rank": (8, 1, 32),
        "num_steps": (18, 9, 40),
        "num_layers": (2, 1, 8),
        "specialize_active_lora": (0, 0, 1),  # 1: the kernels' grid follows the number of active adapters
    },
    observe=observe,
    audited=audited,
    exercise=EXERCISE,
)
