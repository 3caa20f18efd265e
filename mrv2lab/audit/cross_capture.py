"""cross-capture: what else the engine captures changes what this step does, or what its graph reads."""

from collections.abc import Set
from functools import partial

from mrv2lab.audit import frozen_grid, frozen_host_value, lost_kernel, moved_address
from mrv2lab.audit.evidence import Evidence, Findings
from mrv2lab.audit.memory import put
from mrv2lab.audit.passes import Pass
from mrv2lab.audit.recorder import Capture
from mrv2lab.audit.report import Finding
from mrv2lab.audit.results import Comparison, agree
from mrv2lab.audit.trace import Trace
from mrv2lab.audit.unwritten_read import responsible
from mrv2lab.graphs import CapturedGraph

KIND, SHORT, RANK = "cross-capture", "cross", 0
ASKED = "always"
_CAUSES = (frozen_host_value, moved_address, frozen_grid, lost_kernel)


def find(evidence: Evidence) -> Findings:
    """Eager passes before and behind the other captures, at the same inputs; then memory that these wrote."""
    beside = evidence.passes.beside
    if beside is None or not agree(beside.alone.results, beside.again.results):
        return
    names = " and ".join(evidence.passes.engine.beside)
    for after in beside.after:
        if not agree(beside.again.results, after.results):
            yield _leak(evidence, beside.again, after, names)
            return
    if not evidence.differs:
        return
    written = dict(enumerate(beside.written))

    def cures(group: Set[int]) -> bool:
        put_back = partial(put, [(written[n].tensor, written[n].before) for n in group])
        return agree(evidence.passes.run(before=put_back).results, evidence.results.eager)

    for tensor, *_ in responsible(written, cures):
        text = f"the graph reads it, and capturing {names} has written it since"
        text += "; with what it held before, the replay is right"
        yield 0, Finding(KIND, evidence.called(tensor), text)


class _Seen(CapturedGraph):
    """Stands for the step as it was before, so that the two passes can be compared like graph and step."""

    def _replay(self) -> None: ...


def _leak(evidence: Evidence, before: Pass, after: Pass, names: str) -> tuple[int, Finding]:
    """The cause of two eager passes that differ, found as the cause of a frozen decision is."""
    graph = _Seen(None, ())
    seen = Capture(before.trace, before.trace, 0, graph)
    run = Trace(before.trace.lines, events=[graph])
    results = Comparison(before.results, after.results, after.results, True, evidence.results.name_of)
    both = Evidence(evidence.passes, [seen], run, after, results)
    if not (found := [(at, kind.RANK, cause) for kind in _CAUSES for at, cause in kind.find(both)]):
        label = next(iter(both.differs), "the result")
        return 0, Finding(KIND, label, f"an eager step gives another one since {names} was captured")
    _, _, cause = min(found, key=lambda item: item[:2])
    said = "" if cause.change is None else f"was {cause.change[0]!r} before, is {cause.change[1]!r} since: "
    text = f"{said}capturing {names} has changed what the step does, eagerly too"
    return 0, Finding(KIND, cause.subject, text, cause.where, cause.change)
