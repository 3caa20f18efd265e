"""silent-eager: a step that should replay a graph did its work without one."""

from collections.abc import Iterator

from mrv2lab.audit.evidence import Evidence
from mrv2lab.audit.report import Finding
from mrv2lab.errors import counted

RANK = 0


def find(evidence: Evidence) -> Iterator[tuple[int, Finding]]:
    """Count the graphs that the run replayed."""
    work = [event for event in evidence.run.own() if event.is_work]
    if evidence.replays and work and not evidence.run.replayed():
        captured = counted(len(evidence.captures), "graph")
        text = f"{len(work)} ops and launches, and no graph was replayed; captured: {captured}"
        yield 0, Finding("silent-eager", evidence.name, text, evidence.run.place(work[0]))
