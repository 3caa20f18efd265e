"""What can be wrong with a mystery's engine. READING THIS FILE SPOILS THE GAME.

A fault is one function in one seam of `mystery.engine`, beside the one that is right there. An audit finds
it, or else `human` says why not. Their stories are in faults.toml.
"""

from dataclasses import dataclass

from mrv2lab import prose
from mrv2lab.audit import Kind
from mrv2lab.crash import Crash
from mrv2lab.mystery.engine import (
    Part,
    attention,
    block_table,
    cudagraph_utils,
    input_batch,
    logits_processor,
    lora,
    mlp,
    rotary_embedding,
)
from mrv2lab.results import Stated

AUDIT_SILENT: Kind = "audit-silent"  # in place of a kind: a human has to find it
_STORIES: dict[str, str] = prose.beside(__file__)

RIGHT_PARTS: dict[str, Part] = {
    "attention.context": attention.context_by_layer,
    "attention.read_kv": attention.read_kv_scaled_back,
    "attention.write_kv": attention.write_kv_always,
    "block_table.write_slots": block_table.write_slots_to_the_end,
    "cudagraph_utils.dispatch": cudagraph_utils.dispatch_by_size,
    "input_batch.write_positions": input_batch.write_positions_in_place,
    "input_batch.write_seq_lens": input_batch.write_seq_lens_staged,
    "logits_processor.compute_logits": logits_processor.compute_logits_by_graph,
    "lora.add_lora": lora.add_lora_to_all,
    "lora.set_lora": lora.set_lora_in_slot,
    "mlp.down_proj": mlp.down_proj_in_buffer,
    "rotary_embedding.extend": rotary_embedding.extend_in_place,
}
"""What belongs into each seam."""


@dataclass(frozen=True)
class Fault:
    """One thing that can be wrong.

    Attributes:
        kinds: what the audit calls it, causes and no consequences; `audit-silent` if a human has to find it.
    """

    name: str  # a title, shown when it is solved
    part: Part  # the function that is put into its seam
    kinds: tuple[Kind, ...]
    causes: tuple[str, ...]  # words, each of which names the tensor or the host value behind it
    verdict: Stated = "wrong"  # what an engine shows that has this fault only
    human: str = ""  # why the audit cannot find it; empty if it can
    crash: Crash | None = None  # what it must say, and within what, if a crash is its verdict

    @property
    def place(self) -> str:
        """The seam: its name begins the name of every part that is made for it."""
        made_for = f"{self.part.__module__.rpartition('.')[2]}.{self.part.__name__}"
        return next(place for place in RIGHT_PARTS if made_for.startswith(f"{place}_"))

    @property
    def story(self) -> str:
        """How it comes about, how it is seen, how it is repaired."""
        return _STORIES[self.part.__name__]

    @property
    def right_part(self) -> Part:
        """What belongs there."""
        return RIGHT_PARTS[self.place]


FAULTS = (
    Fault(
        "The scale that was a float",
        attention.read_kv_scaled_up,
        kinds=("frozen-host-value",),
        causes=("kv_scale_float",),
    ),
    Fault(
        "Nobody keeps what a dummy computes",
        attention.write_kv_if_kept,
        kinds=("frozen-host-value",),
        causes=("is_dummy",),
    ),
    Fault(
        "Whoever comes first",
        attention.context_by_first,
        kinds=("frozen-host-value",),
        causes=("has_context",),
    ),
    Fault(
        "Only as far as needed",
        attention.context_to_longest,
        kinds=("host-sync",),
        causes=("seq_lens", "longest"),
        verdict="crash",
        crash=Crash(("HostSyncError: ",), within="engine/attention.py in context_to_longest"),
    ),
    Fault(
        "One token each",
        attention.context_with_decode,
        kinds=("frozen-host-value",),
        causes=("max_query_len",),
    ),
    Fault(
        "A bigger table",
        rotary_embedding.extend_anew,
        kinds=("moved-address",),
        causes=("cos_sin_cache", "table"),
    ),
    Fault(
        "Two of a kind", input_batch.write_positions_in_turn, kinds=("moved-address",), causes=("positions",)
    ),
    Fault(
        "Begun too early",
        input_batch.write_seq_lens_early,
        kinds=("audit-silent",),
        causes=("seq_lens", "staged_seq_lens"),
        human="the inputs are late before the step begins: replay and eager pass read the same wrong lengths",
    ),
    Fault(
        "Somebody else's page",
        block_table.write_slots_of_tokens,
        kinds=("audit-silent",),
        causes=("slot_mapping", "slots", "PAD_SLOT_ID", "padding"),
        human="the padding lies in the inputs: replay and eager pass write to the same wrong slots",
    ),
    Fault(
        "One of three",
        block_table.write_slots_in_turn,
        kinds=("moved-address", "frozen-host-value"),
        causes=("turn", "slot_mapping"),
    ),
    Fault(
        "A key that nobody has",
        cudagraph_utils.dispatch_uniform,
        kinds=("silent-eager",),
        causes=("uniform_token_count", "desc", "graphs"),
        verdict="eager",
    ),
    Fault(
        "Only a perfect fit",
        cudagraph_utils.dispatch_exact,
        kinds=("silent-eager",),
        causes=("num_tokens", "size", "padding", "num_tokens_after_padding"),
        verdict="eager",
    ),
    Fault(
        "New memory is zero",
        mlp.down_proj_in_place,
        kinds=("unwritten-read", "frozen-host-value"),
        causes=("sums", "is_capturing"),
    ),
    Fault(
        "Read it later",
        logits_processor.compute_logits_in_pool,
        kinds=("audit-silent",),
        causes=("outputs", "logits"),
        human="the step is right when it ends; its result is overwritten later, by the next replay",
    ),
    Fault(
        "As many as there were",
        lora.add_lora_active,
        kinds=("frozen-host-value", "frozen-grid"),
        causes=("num_active_loras_cpu", "num_active_loras", "grid"),
    ),
    Fault(
        "Loaded beside",
        lora.set_lora_aside,
        kinds=("moved-address",),
        causes=("lora_a_stacked", "lora_b_stacked"),
    ),
)

prose.require_one_each(_STORIES, (fault.part.__name__ for fault in FAULTS))
