"""What vLLM's workers do for `mrv2lab audit model` where an engine has several: vLLM imports this in each.

At import, which is before the model is loaded, this process is watched for as long as it lives.
"""

from typing import Any

from mrv2lab.live.audit import attached, without_places

ATTACHED = attached()  # kept, and never left
STEPS = ATTACHED.__enter__()


class Extension:
    """Methods that `collective_rpc` can call on every worker."""

    def audit_begin(self, scenario: str | None) -> None:
        """What is served from now on belongs to a scenario; with None, to none."""
        STEPS.scenario = scenario

    def audit_told(self) -> dict[str, Any]:
        """What this rank has seen: sizes that have graphs, keys of its steps, reports as JSON and audits
        that failed."""
        return {
            "left_out": STEPS.left_out(),
            "captured": [(desc.num_reqs, desc.num_tokens) for desc in STEPS.captured()],
            "picked": STEPS.picked,
            "failed": STEPS.failed,
            "reports": [without_places(report).to_json() for report in STEPS.reports.values()],
            "why_none": STEPS.why_none(),
        }
