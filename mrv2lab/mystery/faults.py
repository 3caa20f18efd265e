"""What can be wrong with a mystery's engine. READING THIS FILE SPOILS THE GAME.

A fault is one function in one seam of `mystery.engine`, beside the one that is right there. An audit finds
it, or else `human` says why not. Names, reasons and stories are in faults.toml.
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
from mrv2lab.source import Diff, diff

AUDIT_SILENT: Kind = "audit-silent"  # in place of a kind: a human has to find it
_TOLD: dict[str, dict[str, str]] = prose.beside(__file__)

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
    """One thing that can be wrong."""

    part: Part  # the function that is put into its seam
    kinds: tuple[Kind, ...]  # what the audit calls it, causes only; `audit-silent` if a human has to find it
    causes: tuple[str, ...]  # words, each of which names the tensor or the host value behind it
    verdict: Stated = "wrong"  # what an engine shows that has this fault only
    crash: Crash | None = None  # what it must say, and within what, if a crash is its verdict

    @property
    def name(self) -> str:
        return _TOLD[self.part.__name__]["name"]

    @property
    def title(self) -> str:
        """Shown when it is solved."""
        return f"{self.name} ({self.kinds[0]}, {self.place})"

    @property
    def human(self) -> str:
        """Why the audit cannot find it; empty if it can."""
        return _TOLD[self.part.__name__].get("human", "")

    @property
    def place(self) -> str:
        """The seam: its name begins the name of every part that is made for it."""
        made_for = f"{self.part.__module__.rpartition('.')[2]}.{self.part.__name__}"
        return next(place for place in RIGHT_PARTS if made_for.startswith(f"{place}_"))

    @property
    def story(self) -> str:
        """How it comes about, how it is seen, how it is repaired."""
        return _TOLD[self.part.__name__]["story"]

    @property
    def right_part(self) -> Part:
        """What belongs there."""
        return RIGHT_PARTS[self.place]

    @property
    def repair(self) -> Diff:
        return diff(self.part, self.right_part)


FAULTS = (
    Fault(attention.read_kv_scaled_up, ("frozen-host-value",), ("kv_scale_float",)),
    Fault(attention.write_kv_if_kept, ("frozen-host-value",), ("is_dummy",)),
    Fault(attention.context_by_first, ("frozen-host-value",), ("has_context",)),
    Fault(attention.context_to_longest,
          ("host-sync",), ("seq_lens", "longest"), verdict="crash",
          crash=Crash(("HostSyncError: ",), within="engine/attention.py in context_to_longest")),
    Fault(attention.context_with_decode, ("frozen-host-value",), ("max_query_len",)),
    Fault(rotary_embedding.extend_anew, ("moved-address",), ("cos_sin_cache", "table")),
    Fault(input_batch.write_positions_in_turn, ("moved-address",), ("positions",)),
    Fault(input_batch.write_seq_lens_early, ("audit-silent",), ("seq_lens", "staged_seq_lens")),
    Fault(block_table.write_slots_of_tokens,
          ("audit-silent",), ("slot_mapping", "slots", "PAD_SLOT_ID", "padding")),
    Fault(block_table.write_slots_in_turn, ("moved-address", "frozen-host-value"), ("turn", "slot_mapping")),
    Fault(cudagraph_utils.dispatch_uniform,
          ("silent-eager",), ("uniform_token_count", "desc", "graphs"), verdict="eager"),
    Fault(cudagraph_utils.dispatch_exact,
          ("silent-eager",), ("num_tokens", "size", "padding", "num_tokens_after_padding"), verdict="eager"),
    Fault(mlp.down_proj_in_place, ("unwritten-read", "frozen-host-value"), ("sums", "is_capturing")),
    Fault(logits_processor.compute_logits_in_pool, ("audit-silent",), ("outputs", "logits")),
    Fault(lora.add_lora_active,
          ("frozen-host-value", "frozen-grid"), ("num_active_loras_cpu", "num_active_loras", "grid")),
    Fault(lora.set_lora_aside, ("moved-address",), ("lora_a_stacked", "lora_b_stacked")),
)  # fmt: skip

_BY_PART = {fault.part.__name__: fault for fault in FAULTS}
prose.require_one_each(_TOLD, _BY_PART)

# Pairs of which each half shows beside the other; a test holds that. A crash at capture hides everything, and
# an engine without graphs hides what is wrong in them.
_PAIRS = (
    ("read_kv_scaled_up", "write_positions_in_turn"),
    ("read_kv_scaled_up", "set_lora_aside"),
    ("read_kv_scaled_up", "compute_logits_in_pool"),
    ("read_kv_scaled_up", "dispatch_exact"),
    ("write_kv_if_kept", "extend_anew"),
    ("write_kv_if_kept", "add_lora_active"),
    ("write_kv_if_kept", "set_lora_aside"),
    ("context_by_first", "add_lora_active"),
    ("context_by_first", "set_lora_aside"),
    ("context_with_decode", "extend_anew"),
    ("context_with_decode", "set_lora_aside"),
    ("context_with_decode", "write_slots_of_tokens"),
    ("context_with_decode", "dispatch_exact"),
    ("extend_anew", "write_slots_in_turn"),
    ("extend_anew", "add_lora_active"),
    ("write_positions_in_turn", "set_lora_aside"),
    ("write_seq_lens_early", "add_lora_active"),
    ("write_seq_lens_early", "dispatch_uniform"),
)

PAIRS: tuple[tuple[Fault, Fault], ...] = tuple((_BY_PART[a], _BY_PART[b]) for a, b in _PAIRS)

# What a seed may draw. Appending here gives most seeds another mystery.
COMBINATIONS: tuple[tuple[Fault, ...], ...] = (*((fault,) for fault in FAULTS * 2), *PAIRS)
