"""The kinds of finding: a file each, listed here."""

from typing import Protocol

from mrv2lab.audit import (
    both_arms,
    cross_capture,
    diverged,
    freed_memory,
    frozen_grid,
    frozen_host_value,
    host_sync,
    host_write,
    left_behind,
    lost_kernel,
    missing_edge,
    moved_address,
    nodes,
    not_rearmed,
    overwritten_output,
    padding_leak,
    silent_eager,
    stale_input,
    unseen_write,
    unwritten_read,
)
from mrv2lab.audit.evidence import Evidence, Findings


class KindOfFinding(Protocol):
    """What the file of every kind holds: its name, and the head of its column in a matrix."""

    KIND: str
    SHORT: str


class Asked(Protocol):
    """A file that is asked what the evidence of all passes shows. Other kinds are met while one runs."""

    RANK: int  # of findings at the same place of the eager pass the one with the lowest comes first
    ASKED: str  # `always`; where results `differ`; where `nothing` has been found yet

    def find(self, evidence: Evidence) -> Findings:
        """Findings, each with its place in the eager pass (`Evidence.order`, `Trace.when`)."""


CAUSES = (lost_kernel, frozen_host_value, frozen_grid, moved_address, freed_memory)
"""What may explain that results differ, sorted together. Most kinds belong here."""

_INPUTS = (cross_capture, stale_input, padding_leak)

ORDER: tuple[tuple[Asked, ...], ...] = (
    (silent_eager,), _INPUTS, CAUSES, (both_arms,), (unwritten_read,),
    (nodes, unseen_write, host_write), (not_rearmed,), (overwritten_output, left_behind), (missing_edge,),
    (diverged,),
)  # fmt: skip
"""In which order kinds are asked, those of a group at once. If the first finds something, no other is."""

ALL: tuple[KindOfFinding, ...] = (
    *CAUSES, unwritten_read, not_rearmed, overwritten_output, *_INPUTS, left_behind, missing_edge, host_sync,
    silent_eager, diverged,
)  # fmt: skip
OF_GRAPHS = {
    kind.KIND for kind in (*CAUSES, cross_capture, not_rearmed, overwritten_output, left_behind, diverged)
}
"""What only a capture and its replays get wrong; other kinds are wrong eagerly too."""

KINDS = tuple(kind.KIND for kind in ALL)
SHORT_KINDS = tuple(kind.SHORT for kind in ALL)
