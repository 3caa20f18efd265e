"""LoRA kernels that a captured graph never contains. vLLM #43314, after #43139; replaced by #35536.

`lora_shrink` and `lora_expand` begin with `if no_lora_flag_cpu.item(): return`: a decision of the HOST.
A dummy run maps every token to adapter 0, "none", and leaves the flag set. Capture, which programs no
mapping, finds it so: the kernels are not launched, the graph holds none, and replay leaves the adapters out
for ever. No error, only answers of a model that nobody asked for.
"""

from typing import Any

from mrv2lab.cases.base import Case, Limit, Variant
from mrv2lab.cases.exercises.lora_short_circuit import EXERCISE
from mrv2lab.cases.serving import Served, Serving, Shape, config_of, decode_graphs
from mrv2lab.runner import InputBatch, LoRAMapping, LoRAModelManager, ModelRunner


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


def make_runner(variant: Variant, backend: str, shape: Shape, **changes: Any) -> ModelRunner:
    """A runner whose dummy batches get their adapters from the variant."""
    special = bool(shape["specialize_active_lora"])
    config = config_of(variant, shape, max_lora_rank=shape["rank"], specialize_active_lora=special, **changes)
    return ModelRunner(config, backend, variant.fn)


def lora_kernels(served: Served) -> dict[str, float]:
    """How many of the two kernels the graph of a decode step holds."""
    names = [node.name for graph in decode_graphs(served) for node in graph.nodes]
    return {"lora_kernels_in_graph": sum(name.startswith("_lora_") for name in names)}


BASELINE = Variant(eager, "baseline", "correct", uses_graphs=False)
SERVING = Serving(make_runner, BASELINE, metrics=lora_kernels, adapters=True)

CASE = Case(
    name="lora_short_circuit",
    title="LoRA kernels that a captured graph never contains",
    upstream="vllm-project/vllm #43314 (fix), #43139 (cause), #35536 (replacement)",
    variants=(
        BASELINE,
        Variant(zero_mapping, "buggy", "wrong", finding=("frozen-host-value", "no_lora_flag_cpu")),
        Variant(forced_launch, "fixed", "correct"),
    ),
    limits={
        "batch_size": Limit(4, 1, 8),
        "rank": Limit(8, 1, 32),
        "num_steps": Limit(18, 9, 40),
        "num_layers": Limit(2, 1, 8),
        "to_the_limits": Limit(0, 0, 1),
        "specialize_active_lora": Limit(0, 0, 1),  # 1: the grid follows the number of adapters
    },
    observe=SERVING.observe,
    audit_step=SERVING.audit,
    exercise=EXERCISE,
)
