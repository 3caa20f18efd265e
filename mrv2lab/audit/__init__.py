"""HOW we know: an audit captures a step, replays it on other inputs, and names what its graph got wrong.

report = audit(step, vary=next_inputs)
report.kinds                  # {"lost-kernel", "frozen-host-value"}
report.findings[0].subject    # the cause comes first

It works on any callable over static buffers. `audit_engine` does the same for somebody who captures and
replays by means of their own; `audit_eager` for a step that is not captured. One file for each kind of
finding, and `kinds`, where what such a file holds is declared.
"""

from mrv2lab.audit.driver import EngineAudit, audit, audit_eager, audit_engine
from mrv2lab.audit.kinds import KINDS, SHORT_KINDS
from mrv2lab.audit.passes import Engine
from mrv2lab.audit.report import AuditReport, Finding, Kind, Place
from mrv2lab.audit.target import audit_target, load_ipython_extension
from mrv2lab.audit.timelines import Timeline, of_audit, timeline
from mrv2lab.errors import AuditError

__all__ = [
    "KINDS", "SHORT_KINDS", "AuditError", "AuditReport", "Engine", "EngineAudit", "Finding", "Kind", "Place",
    "Timeline", "audit", "audit_eager", "audit_engine", "audit_target", "load_ipython_extension", "of_audit",
    "timeline",
]  # fmt: skip
