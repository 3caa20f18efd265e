"""A dummy batch whose LoRA metadata nobody wrote. vLLM #43139; its fix is the bug of #43314.

The dummy-run branch of `execute_model` programmed no LoRA mapping. `VocabParallelEmbeddingWithLoRA` then
looked up rows of the adapters at `token_id + _embeddings_indices`, and those indices came from `torch.empty`.
One of them is past the table, a thread of the look-up asserts, and the CUDA context is lost. A launch is
asynchronous, so the host hears of it only at a later one: `lora_expand`, which is written in Triton. Hence
the title of the pull request: Triton Error [CUDA]: device-side assert triggered.

No graph takes part: upstream's failing test ran with `--enforce-eager`, and so does this case.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch

from mrv2lab.audit import AuditReport, Kind, audit_eager
from mrv2lab.cases.base import Case, Limit, Observation, Variant
from mrv2lab.cases.exercises.lora_device_assert import EXERCISE
from mrv2lab.cases.exercises.missing_test import deterministic, settings_put_back
from mrv2lab.cases.serving import Serving, Shape, config_of, reference
from mrv2lab.cases.workload import decode_latency, serve, workload
from mrv2lab.crash import Crash, of_cuda
from mrv2lab.runner import CUDAGraphMode, InputBatch, LoRAMapping, LoRAModelManager, ModelRunner


def dummy_adapters(adapter_manager: LoRAModelManager, input_batch: InputBatch) -> None:
    """Let adapter 1 take part in the dummy batch. So does the V1 runner's capture, and MRV2 since #35536."""
    tokens, requests = input_batch.num_tokens_after_padding, input_batch.num_reqs
    mapping = LoRAMapping(index_mapping=(1,) * tokens, prompt_mapping=(1,) * requests)
    adapter_manager.set_active_adapters({1}, mapping)


def unwritten(adapter_manager: LoRAModelManager, input_batch: InputBatch) -> None:
    """Program no mapping for the dummy batch. The state before #43139."""


def zero_mapping(adapter_manager: LoRAModelManager, input_batch: InputBatch) -> None:
    """Map every token of the dummy batch to "no adapter", so that kernels leave early. What #43139 did."""
    adapter_manager.set_adapter_mapping(
        LoRAMapping(
            index_mapping=(0,) * input_batch.num_tokens_after_padding,
            prompt_mapping=(0,) * input_batch.num_reqs,
        )
    )


@contextmanager
def filled_memory() -> Iterator[None]:
    """Within this context `torch.empty` fills its memory: integers with their largest value, floats with nan.
    What fresh memory holds is chance. The bug is there for any content; the crash is there for this one.
    """
    with settings_put_back():
        torch.use_deterministic_algorithms(True)
        deterministic.fill_uninitialized_memory = True
        yield


def observe(variant: Variant, backend: str, shape: Shape) -> Observation:
    """Make a runner, let it run its dummy batch with the variant, and serve the workload. Its reference never
    ran a dummy batch: each real batch programs its own mapping.
    """
    runner = make_runner(variant, backend, shape)
    runner.warm_up_and_capture()
    wanted = reference(SERVING, backend, *shape.items())
    return Observation(
        steps=serve(runner, [workload(shape)], shape["batch_size"], wanted),
        reference=wanted,
        config=runner.config,
        # Where every launch waits, that would be the speed of the waiting.
        measure=lambda: None if shape["launch_blocking"] else decode_latency(runner, backend, shape),
    )


def make_runner(variant: Variant, backend: str, shape: Shape, **changes: Any) -> ModelRunner:
    """A runner with adapters on the embedding, without graphs; its buffers are filled, or as they come."""
    fields: dict[str, Any] = {"max_lora_rank": shape["rank"], "lora_embedding": True}
    config = config_of(variant, shape, **{"cudagraph_mode": CUDAGraphMode.NONE, **fields, **changes})
    with filled_memory() if shape["fill_memory"] else nullcontext():
        return ModelRunner(config, backend, variant.fn)


def start(variant: Variant, backend: str, shape: Shape) -> ModelRunner:
    """Make a runner in memory as it comes, and let it run its dummy batch."""
    runner = make_runner(variant, backend, shape | {"fill_memory": 0})
    runner.warm_up_and_capture()
    return runner


def audit_step(variant: Variant, backend: str, shape: Shape, seed: int) -> AuditReport:
    """Audit the dummy batch of a new runner. It is run eagerly, and what the runner allocates is watched."""

    def dummy_batch() -> torch.Tensor:
        runner = make_runner(variant, backend, shape | {"fill_memory": 0}, seed=seed)
        runner.dummy_run(shape["batch_size"])
        return runner.hidden_states[: shape["batch_size"]]

    return audit_eager(f"ModelRunner.dummy_run, {variant.name}", dummy_batch, backend=backend)


def child_env(shape: Shape) -> dict[str, str]:
    """With 1 every launch waits for its kernel. CUDA reads this when a process first uses it, not later."""
    return {"CUDA_LAUNCH_BLOCKING": str(shape["launch_blocking"])}


SAID = "IndexError: index out of range in self", *of_cuda("device-side assert triggered")
CRASH = Crash(SAID, within="runner/vocab_parallel_embedding.py in forward")
FINDING: tuple[Kind, str] = "unwritten-read", "_embeddings_indices"
BASELINE = Variant(dummy_adapters, "baseline", "correct", uses_graphs=False)
SERVING = Serving(make_runner, BASELINE)

CASE = Case(
    name="lora_device_assert",
    title="A dummy batch whose LoRA metadata nobody wrote",
    upstream="vllm-project/vllm #43139 (fix), #43314 (repairs the fix), #35536 (replacement)",
    variants=(
        BASELINE,
        Variant(unwritten, "buggy", "crash", uses_graphs=False, finding=FINDING, crash=CRASH),
        Variant(zero_mapping, "fixed", "correct", uses_graphs=False),
    ),
    limits={
        "batch_size": Limit(4, 1, 8),
        "rank": Limit(8, 1, 32),
        "num_steps": Limit(9, 9, 40),
        "num_layers": Limit(1, 1, 8),
        "fill_memory": Limit(1, 0, 1),  # 0: what the memory happens to hold
        "launch_blocking": Limit(0, 0, 1),  # 1: CUDA_LAUNCH_BLOCKING; on the emulator it changes nothing
    },
    observe=observe,
    audit_step=audit_step,
    exercise=EXERCISE,
    start=start,
    loses_context=True,
    child_env=child_env,
)
