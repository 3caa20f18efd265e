"""A plan that is made on first use, and whose first use is not where you think. vLLM #42444 and #44253.

`flash_mla_with_kvcache` plans when the metadata it is given holds no plan: its op in C++ asks on the HOST
whether `tile_scheduler_metadata` is none. (So are dense decodes of a BF16 cache planned, and sparse ones, of
an FP8 cache; dense ones of an FP8 cache the builder plans, `flashmla.py:172-194` of 0.23.0.) Two passes
precede the first replay, an eager warm-up and the capture, and each bug gives one of them metadata that the
other kind of pass has used before.

Used by the warm-up, then captured: the planner is not in the graph, and the plan of the warm-up serves
all lengths to come. Used by the capture, then run eagerly: the tensor is there, but the planner was only
recorded, and the eager pass reads a plan that nobody wrote. `have_initialized` goes up in Python, before the
op is called, and guards checks and what they record: who puts it down again has repaired nothing.
"""

from collections.abc import Callable
from typing import Any

import torch

from mrv2lab.cases.base import LIMITS, SEED, Case, Limit, Variant
from mrv2lab.cases.exercises.flashmla_lazy_init import EXERCISE
from mrv2lab.cases.serving import Served, Serving, Shape, config_of, decode_graphs
from mrv2lab.crash import WILD_POINTER, Crash
from mrv2lab.graphs import capture, device_of
from mrv2lab.kernels.flash_mla import FlashMLASchedMeta, flash_mla_reference, flash_mla_with_kvcache
from mrv2lab.runner import (
    AttentionMetadata,
    AttentionStatePair,
    AttentionStates,
    AttentionStatesOfSize,
    Build,
    CUDAGraphMode,
    ModelRunner,
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
    """Nothing is kept: every pass builds metadata of its own, when its turn comes. As vLLM since 0.26.0 for
    whole and for breakable graphs; compiled pieces are captured with those of their warm-up."""
    return build, build


def eager(build: Build) -> States:
    """The same as `fresh_always`, in a runner that captures nothing: every step plans afresh."""
    return fresh_always(build)


def make_runner(variant: Variant, backend: str, shape: Shape, **changes: Any) -> ModelRunner:
    """A runner whose metadata come from the variant."""
    config = drafting(variant, shape, attention_backend="FLASHMLA", **changes)
    return ModelRunner(config, backend, attention_states=variant.fn)


def drafting(variant: Variant, shape: Shape, **fields: Any) -> RunnerConfig:
    """The config of a runner with a speculator that drafts one token."""
    return config_of(
        variant,
        shape,
        CUDAGraphMode.FULL_DECODE_ONLY,
        block_size=16,
        num_speculative_tokens=1,
        # Logits are compared step by step: an engine that answers wrongly must not draft other batches.
        verify_drafts=False,
        **fields,
    )


def planners(served: Served) -> dict[str, float]:
    """How often the graph of a decode step makes the plan."""
    names = [node.name for graph in decode_graphs(served) for node in graph.nodes]
    return {"planners_in_graph": names.count("get_mla_metadata_kernel")}


def wild_access(kernel: str) -> Crash:
    """How it ends if a kernel follows a plan that is none while the speculator captures."""
    said = f"IllegalAccess: an illegal memory access was encountered: {kernel}"
    return Crash((said, *WILD_POINTER), within="runner/speculator.py in capture")


PLAN, CRASH = "tile_scheduler_metadata", wild_access("flash_fwd_splitkv_mla_kernel")
BASELINE = Variant(eager, "baseline", "correct", uses_graphs=False)
SERVING = Serving(make_runner, BASELINE, metrics=planners)

LENGTHS = {
    "as captured": (1, 1, 1, 1),
    "same pages": (16, 9, 2, 1),
    "one more page": (17, 9, 2, 1),
    "all different": (5, 17, 33, 90),
    "longest": (96, 96, 96, 96),
}


def errors_by_length(attention_states: AttentionStates, backend: str) -> dict[str, float]:
    """The attention alone, captured at the dummy's lengths: for each of `LENGTHS` the relative error
    against float64."""
    device, latent, scale = device_of(backend), 32, 0.2
    generator = torch.Generator().manual_seed(SEED)
    q = torch.randn(4, 4, latent + 16, generator=generator).to(device)
    k_cache = torch.randn(25, 16, latent + 16, generator=generator).to(device)
    block_table = torch.arange(1, 25, dtype=torch.int32, device=device).view(4, 6)
    seq_lens = torch.ones(4, dtype=torch.int32, device=device)
    inputs = (q, k_cache, block_table, seq_lens, latent)

    def build() -> AttentionMetadata:
        nothing = seq_lens[:0]
        return AttentionMetadata(nothing, seq_lens, 96, block_table, nothing, 1, FlashMLASchedMeta())

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
    upstream="vllm-project/vllm #42444 (target model), #44253 (speculator), #48261 (its sequel)",
    variants=(
        BASELINE,
        Variant(shared_state, "buggy", "wrong", finding=("frozen-host-value", PLAN)),
        Variant(captured_reused, "buggy", "crash", finding=("unwritten-read", PLAN), crash=CRASH),
        Variant(state_pair, "fixed", "correct"),
        Variant(fresh_always, "fixed", "correct"),
    ),
    limits=LIMITS | {"num_steps": Limit(24, 24, 40), "num_layers": Limit(1, 1, 8)},
    observe=SERVING.observe,
    audit_step=SERVING.audit,
    exercise=EXERCISE,
    loses_context=True,
)
