"""Which faults a seed may draw. READING THIS FILE SPOILS THE GAME.

Every fault alone, and pairs of which each half shows beside the other; a test holds that. A crash at capture
hides everything, and an engine without graphs hides what is wrong in them.
"""

from mrv2lab.mystery.faults import FAULTS, Fault

_BY_PART = {fault.part.__name__: fault for fault in FAULTS}

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

# Appending here gives most seeds another mystery.
COMBINATIONS: tuple[tuple[Fault, ...], ...] = (*((fault,) for fault in FAULTS * 2), *PAIRS)
