"""A plan that is made on first use, and whose first use is not where you think. vLLM #42444 and #44253.

`flash_mla_with_kvcache` plans when the metadata it is given holds no plan: `tile_scheduler_metadata is None`
is a question to the HOST. Two passes precede the first replay, an eager warm-up and the capture, and each
bug gives one of them metadata that the other kind of pass has used before.

Used by the warm-up, then captured: the planner is not in the graph, and the plan of the warm-up serves
all lengths to come. Used by the capture, then run eagerly: the tensor is there, but the planner was only
recorded, and the eager pass reads a plan that nobody wrote. `have_initialized` goes up with the tensor and
decides nothing: who puts it down again has repaired nothing.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch

from mrv2lab.audit import AuditReport
from mrv2lab.cases.audited import audit_decode_step
from mrv2lab.cases.base import SEED, Case, Observation, Variant
from mrv2lab.cases.exercises.flashmla_lazy_init import EXERCISE
from mrv2lab.cases.workload import decode_kernels, decode_latency, serve, serve_idly, workload
from mrv2lab.crash import WILD_POINTER, Crash
from mrv2lab.graphs import capture, device_of, poison
from mrv2lab.kernels.flash_mla import FlashMLASchedMeta, flash_mla_reference, flash_mla_with_kvcache
from mrv2lab.runner import (
    AttentionMetadata,
    AttentionStatePair,
    AttentionStates,
    AttentionStatesOfSize,
    Build,
    CUDAGraphMode,
    ModelRunner,
    ModelRunnerOutput,
    RunnerConfig,
    attention_state,
)

States = tuple[AttentionStatesOfSize, AttentionStatesOfSize]  # the target's, the speculator's


def shared_state(build: Build) -> States:
    """One for all: the warm-up plans, and capture finds the plan made. The target model before #42444."""
    state = build()
    pair = AttentionStatePair(warmup=state, captured=state)
    return pair, pair


def captured_reused(build: Build) -> States:
    """The speculator warms up with what the target has captured. After #42444 and before #44253."""
    pair = AttentionStatePair(warmup=build(), captured=build())
    return pair, AttentionStatePair(warmup=pair.captured, captured=pair.captured)


def state_pair(build: Build) -> States:
    """Warm-ups share one, captures share the other. What #44253 did."""
    pair = AttentionStatePair(warmup=build(), captured=build())
    return pair, pair


def fresh_always(build: Build) -> States:
    """Nothing is kept: every pass builds metadata of its own, when its turn comes. As vLLM since 0.26.0."""
    return build, build


def eager(build: Build) -> States:
    """The same as `fresh_always`, in a runner that captures nothing: every step plans afresh."""
    return fresh_always(build)


def observe(variant: Variant, backend: str, shape: dict[str, int]) -> Observation:
    """Serve the workload with the variant's metadata."""
    config = make_config(shape, mode_of(variant))
    return observe_runner(ModelRunner(config, backend, attention_states=variant.fn), config, shape)


def mode_of(variant: Variant) -> CUDAGraphMode:
    """How a variant wants decode steps to be run."""
    return CUDAGraphMode.FULL_DECODE_ONLY if variant.uses_graphs else CUDAGraphMode.NONE


def observe_runner(runner: ModelRunner, config: RunnerConfig, shape: dict[str, int]) -> Observation:
    """Capture and serve the workload; logits are those of the target and of the speculator."""
    backend = runner.backend
    # What nobody writes must not happen to be zero, as it often is in memory that is new.
    poisoned = poison(runner.cudagraph_manager.pool, backend)
    runner.warm_up_and_capture()
    del poisoned
    steps = with_draft(serve(runner, workload(shape), shape["batch_size"]))
    kernels = decode_kernels(runner, shape["batch_size"])
    return Observation(
        steps=steps,
        reference=reference(backend, *shape.items(), attention_backend=config.attention_backend),
        config=config,
        idle=with_draft(serve_idly(runner, config, workload(shape), shape["batch_size"])),
        kernels=kernels,
        metrics={
            "graph_nodes": sum(kernels.values()),
            "planners_in_graph": kernels.get("get_mla_metadata_kernel", 0),
            "replayed_steps": sum(step.num_replays for step in steps),
        },
        measure=lambda: decode_latency(runner, backend, shape),
    )


def with_draft(steps: list[ModelRunnerOutput]) -> list[ModelRunnerOutput]:
    """Judge both models: put the draft's logits beside the target's."""
    for step in steps:
        if step.draft_logits is not None:
            step.logits = torch.cat([step.logits, step.draft_logits], dim=-1)
    return steps


@lru_cache(maxsize=16)
def reference(
    backend: str, *shape: tuple[str, int], attention_backend: str = "FLASHMLA"
) -> list[ModelRunnerOutput]:
    """The workload, run eagerly: what every variant is compared with."""
    runner = ModelRunner(make_config(dict(shape), CUDAGraphMode.NONE, attention_backend), backend)
    return with_draft(serve(runner, workload(dict(shape)), dict(shape)["batch_size"]))


def audited(variant: Variant, backend: str, shape: dict[str, int], seed: int) -> AuditReport:
    """Audit the capture of target and speculator, and a decode step of the target."""
    sizes = (shape["batch_size"],)
    config = replace(make_config(shape, mode_of(variant)), seed=seed, cudagraph_capture_sizes=sizes)
    runner = ModelRunner(config, backend, attention_states=variant.fn)
    return audit_decode_step(runner, variant, shape, seed)


def make_config(
    shape: dict[str, int], mode: CUDAGraphMode, attention_backend: str = "FLASHMLA"
) -> RunnerConfig:
    """The runner for a shape."""
    return RunnerConfig(
        attention_backend=attention_backend,
        block_size=16,
        num_layers=shape["num_layers"],
        num_speculative_tokens=1,
        # Logits are compared step by step: an engine that answers wrongly must not draft other batches.
        verify_drafts=False,
        cudagraph_mode=mode,
        seed=SEED,
    )


LENGTHS = {
    "as captured": (1, 1, 1, 1),
    "same pages": (16, 9, 2, 1),
    "one more page": (17, 9, 2, 1),
    "all different": (5, 17, 33, 90),
    "longest": (96, 96, 96, 96),
}


def errors_by_length(attention_states: AttentionStates, backend: str) -> dict[str, float]:
    """The attention alone: capture it at the dummy's lengths, then replay it at others.

    Args:
        attention_states: a variant, or a function of your own for the same seam.
        backend: `cuda`, `emulated` or `auto`.

    Returns:
        For each entry of `LENGTHS`, the relative error against float64.
    """
    device, latent, scale = device_of(backend), 32, 0.2
    generator = torch.Generator().manual_seed(SEED)
    q = torch.randn(4, 4, latent + 16, generator=generator).to(device)
    k_cache = torch.randn(25, 16, latent + 16, generator=generator).to(device)
    block_table = torch.arange(1, 25, dtype=torch.int32, device=device).view(4, 6)
    seq_lens = torch.ones(4, dtype=torch.int32, device=device)
    inputs = (q, k_cache, block_table, seq_lens, latent)

    def build() -> AttentionMetadata:
        nothing = seq_lens[:0]
        return AttentionMetadata(
            query_start_loc=nothing,
            seq_lens=seq_lens,
            max_seq_len=96,
            block_table=block_table,
            slot_mapping=nothing,
            max_query_len=1,
            scheduler_metadata=FlashMLASchedMeta(),
        )

    states, _ = attention_states(build)

    def attend(*, warmup: bool) -> Callable[[], torch.Tensor]:
        plan: Any = attention_state(states, warmup=warmup).scheduler_metadata
        return lambda: flash_mla_with_kvcache(*inputs, plan, scale)

    attend(warmup=True)()
    graph = capture(attend(warmup=False), backend=backend)
    errors = {}
    for name, lengths in LENGTHS.items():
        seq_lens.copy_(torch.tensor(lengths))
        graph.replay()
        expected = flash_mla_reference(*inputs, scale)
        errors[name] = ((graph.outputs - expected).norm() / expected.norm()).item()
    return errors


CASE = Case(
    name="flashmla_lazy_init",
    title="A plan that is made on first use, and whose first use is not where you think",
    upstream="vllm-project/vllm #42444 (target model), #44253 (speculator)",
    story=(
        "The attention kernels follow a plan that the first call makes. A warm-up that shares its metadata "
        "with the capture leaves the planner out of the graph; a warm-up that is given captured metadata "
        "reads a plan that was never made."
    ),
    variants=(
        Variant(eager, "baseline", "correct", uses_graphs=False),
        Variant(shared_state, "buggy", "wrong", finding=("frozen-host-value", "tile_scheduler_metadata")),
        Variant(
            captured_reused,
            "buggy",
            "crash",
            finding=("unwritten-read", "tile_scheduler_metadata"),
            crash=Crash(
                (
                    "IllegalAccess: an illegal memory access was encountered: flash_fwd_splitkv_mla_kernel",
                    *WILD_POINTER,
                ),
                within="runner/speculator.py in capture",
            ),
        ),
        Variant(state_pair, "fixed", "correct"),
        Variant(fresh_always, "fixed", "correct"),
    ),
    limits={"batch_size": (4, 1, 8), "num_steps": (24, 24, 40), "num_layers": (1, 1, 8)},
    observe=observe,
    audited=audited,
    exercise=EXERCISE,
    loses_context=True,
)
