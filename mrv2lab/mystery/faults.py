"""What can be wrong with a mystery's engine. READING THIS FILE SPOILS THE GAME.

A fault is one function in one seam of `mystery.engine`, beside the one that is right there. An audit finds
it, or else `human` says why not. What is said of each is in faults.toml.
"""

from dataclasses import dataclass
from operator import attrgetter

from mrv2lab import prose
from mrv2lab.audit import Kind
from mrv2lab.crash import Crash
from mrv2lab.mystery import engine
from mrv2lab.mystery.engine import Part
from mrv2lab.results import Stated
from mrv2lab.source import Diff, diff

AUDIT_SILENT: Kind = "audit-silent"  # in place of a kind: a human has to find it

_TOLD = prose.beside(__file__)
RIGHT_PARTS: dict[str, Part] = {
    place: attrgetter(f"{place.split('.')[0]}.{name}")(engine)
    for place, name in _TOLD.pop("right_parts").items()
}
"""What belongs into each seam."""


@dataclass(frozen=True)
class Fault:
    """One thing that can be wrong. faults.toml says what each of these is."""

    part: Part  # the function that is put into its seam
    name: str
    story: str
    kinds: tuple[Kind, ...]
    causes: tuple[str, ...]
    human: str = ""
    verdict: Stated = "wrong"
    said: str = ""

    @property
    def title(self) -> str:
        return f"{self.name} ({self.kinds[0]}, {self.place})"

    @property
    def place(self) -> str:
        """The seam: its name begins the name of every part that is made for it."""
        made_for = f"{self.part.__module__.rpartition('.')[2]}.{self.part.__name__}"
        return next(place for place in RIGHT_PARTS if made_for.startswith(f"{place}_"))

    @property
    def crash(self) -> Crash | None:
        file, _ = self.place.split(".")
        within = f"engine/{file}.py in {self.part.__name__}"
        return Crash((self.said,), within) if self.verdict == "crash" else None

    @property
    def right_part(self) -> Part:
        return RIGHT_PARTS[self.place]

    @property
    def repair(self) -> Diff:
        return diff(self.part, self.right_part)


FAULTS = tuple(
    Fault(attrgetter(f"{file}.{part}")(engine), **told)
    for file, parts in _TOLD.items()
    for part, told in parts.items()
)
_BY_PART = {fault.part.__name__: fault for fault in FAULTS}

# Pairs of which each half shows beside the other; a test holds that. A crash at capture hides everything, and
# an engine without graphs hides what is wrong in them.
_BESIDE = {
    "read_kv_scaled_up": "write_positions_in_turn set_lora_aside compute_logits_in_pool dispatch_exact",
    "write_kv_if_kept": "extend_anew add_lora_active set_lora_aside",
    "context_by_first": "add_lora_active set_lora_aside",
    "context_with_decode": "extend_anew set_lora_aside write_slots_of_tokens dispatch_exact",
    "extend_anew": "write_slots_in_turn add_lora_active",
    "write_positions_in_turn": "set_lora_aside",
    "write_seq_lens_early": "add_lora_active dispatch_uniform",
}
PAIRS = tuple((_BY_PART[part], _BY_PART[name]) for part, names in _BESIDE.items() for name in names.split())

# What a seed may draw. Appending here gives most seeds another mystery.
COMBINATIONS: tuple[tuple[Fault, ...], ...] = (*((fault,) for fault in FAULTS * 2), *PAIRS)
