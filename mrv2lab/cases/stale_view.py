"""Metadata that was kept, and shows by then what somebody else has written. vLLM #47561 and #48261.

The sequel of `flashmla_lazy_init`. Attention metadata kept for the speculator's prefill are no copies. They
are views of buffers that the runner and the metadata's builder own, and each later build writes these again:
lengths, `query_start_loc`, and the scheduler metadata that vLLM makes for FlashAttention 3 ahead of time. The
target is captured in all sizes, the largest first; then comes the speculator. At its warm-up for 8 requests,
the buffers hold the plan of the target's last size, 1.

Where a number lies in that plan depends on the batch size. So a kernel that reads it as a plan for 8 finds
another number than was meant, takes it for a count of splits, and runs out of its memory. Replays would have
been right, because each step builds before it replays: only what runs while graphs are captured is hit.
"""

from dataclasses import replace
from functools import partial
from typing import Any

from mrv2lab.cases.base import LIMITS, Case, Limit, Variant
from mrv2lab.cases.exercises.stale_view import EXERCISE
from mrv2lab.cases.flashmla_lazy_init import drafting, state_pair, wild_access
from mrv2lab.cases.serving import Serving, Shape
from mrv2lab.runner import (
    AttentionMetadata,
    AttentionStatePair,
    AttnStates,
    BatchExecutionDescriptor,
    ModelRunner,
    PrepareInputs,
    Speculator,
    attention_state,
)


def one_state(
    speculator: Speculator, attn_states: AttnStates, prepare_inputs_to_capture: PrepareInputs
) -> None:
    """Both passes get what the target has captured with. 0.21 and 0.22, before #44253."""
    captured = {desc: attention_state(kept, warmup=False) for desc, kept in attn_states.items()}
    speculator.capture({desc: AttentionStatePair(state, state) for desc, state in captured.items()})


def kept_pairs(
    speculator: Speculator, attn_states: AttnStates, prepare_inputs_to_capture: PrepareInputs
) -> None:
    """Each pass gets what the target's same pass had. #44253, which was right for FlashMLA."""
    speculator.capture(attn_states)


def zeroed_buffers(
    speculator: Speculator, attn_states: AttnStates, prepare_inputs_to_capture: PrepareInputs
) -> None:
    """Nothing stale in what the speculator keeps: all zero. #47596 proposed it for other buffers, too."""
    speculator.input_ids.zero_()
    speculator.hidden_states.zero_()
    speculator.capture(attn_states)


def own_copies(
    speculator: Speculator, attn_states: AttnStates, prepare_inputs_to_capture: PrepareInputs
) -> None:
    """Lengths and plan of each size, copied, so that nobody writes there any more."""

    def copied(desc: BatchExecutionDescriptor) -> AttentionMetadata:
        state = prepare_inputs_to_capture(desc)
        tensors = ("query_start_loc", "seq_lens", "scheduler_metadata")
        return replace(state, **{name: getattr(state, name).clone() for name in tensors})

    speculator.capture({desc: AttentionStatePair(copied(desc), copied(desc)) for desc in attn_states})


def fresh_inputs(
    speculator: Speculator, attn_states: AttnStates, prepare_inputs_to_capture: PrepareInputs
) -> None:
    """Dummy batch and metadata are made anew before every pass, where each step will write. #48261."""
    speculator.capture({desc: partial(prepare_inputs_to_capture, desc) for desc in attn_states})


def eager(speculator: Speculator, attn_states: AttnStates, prepare_inputs_to_capture: PrepareInputs) -> None:
    """The same as `fresh_inputs`, in a runner that has no sizes to capture."""
    fresh_inputs(speculator, attn_states, prepare_inputs_to_capture)


def make_runner(variant: Variant, backend: str, shape: Shape, **changes: Any) -> ModelRunner:
    """A runner whose target keeps its metadata for the speculator, as #44253 does."""
    config = drafting(variant, shape, attention_backend="FLASH_ATTN_MLA", **changes)
    return ModelRunner(config, backend, attention_states=state_pair, capture_speculator=variant.fn)


BASELINE = Variant(eager, "baseline", "correct", uses_graphs=False)
# The audited step is the speculator's, after one size was captured, so that no other build came between: with
# several, the capture itself would die, and there would be no replay to compare.
SERVING = Serving(make_runner, BASELINE, of_draft=True)

CRASH = wild_access("flash_fwd_combine_kernel")
UNSEEN = "they crash while several sizes are captured; an audit captures one"

CASE = Case(
    name="stale_view",
    title="Metadata that was kept, and shows what somebody else has written",
    upstream="vllm-project/vllm #47561, #48261",
    variants=(
        BASELINE,
        Variant(one_state, "buggy", "crash", unseen=UNSEEN, crash=CRASH),
        Variant(kept_pairs, "buggy", "crash", unseen=UNSEEN, crash=CRASH),
        Variant(zeroed_buffers, "tempting", "crash", unseen=UNSEEN, crash=CRASH),
        Variant(own_copies, "tempting", "wrong", finding=("moved-address", "seq_lens")),
        Variant(fresh_inputs, "fixed", "correct"),
    ),
    limits=LIMITS | {"num_steps": Limit(24, 9, 40), "num_layers": Limit(1, 1, 8)},
    observe=SERVING.observe,
    audit_step=SERVING.audit,
    exercise=EXERCISE,
    loses_context=True,
)
