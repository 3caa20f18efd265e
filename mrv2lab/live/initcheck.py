"""compute-sanitizer's initcheck beside the audit: a plan for FlashMLA that a capture made and nobody has run.

Both look at the same program, each in a process of its own, timed as a whole and from the moment on when all
is imported and the weights are there: `python -m mrv2lab.live.initcheck plain` under the sanitizer,
`... audit` without it.
"""

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from mrv2lab import sources
from mrv2lab.audit import AuditReport, audit
from mrv2lab.errors import BadInput
from mrv2lab.graphs import capture
from mrv2lab.live.rung import check
from mrv2lab.results import RECORDS, Kept, provenance
from mrv2lab.upstream.releases import TARGET

FILE = RECORDS / "audit-initcheck.json"
SANITIZER = ("compute-sanitizer", "--tool", "initcheck")
_REPORT = "Uninitialized"  # how a report of the sanitizer begins


class Comparison(Kept):
    """Processes on one GPU, one after the other. Seconds of each as a whole, and of its step alone.

    Attributes:
        plain_s, plain_step_s: the program alone; `plain_ended` whether it ended by itself in time.
        audit_s, audit_step_s: the program audited; `found` is what the audit said.
        initcheck_s, initcheck_step_s: the program under the sanitizer; `initcheck_ended` as above.
    """

    plain_s: float
    plain_step_s: float | None
    plain_ended: bool
    audit_s: float
    audit_step_s: float
    found: list[str]
    initcheck_s: float
    initcheck_step_s: float | None
    initcheck_ended: bool
    initcheck_reports: int  # reads that the sanitizer had reported until then; it stops to report after 100

    def __str__(self) -> str:
        reported = f"{self.initcheck_reports} reads reported"
        rows = [
            ("alone", self.plain_s, self.plain_step_s, ""),
            ("initcheck", self.initcheck_s, self.initcheck_step_s, reported),
            ("audited", self.audit_s, self.audit_step_s, ", ".join(self.found)),
        ]
        lines = [f"{'':<10}{'process':>10}{'its step':>10}"]
        for name, process_s, step_s, found in rows:
            step = "" if step_s is None else f"{step_s:.2f} s"
            lines.append(f"{name:<10}{process_s:>8.1f} s{step:>10}  {found}".rstrip())
        return "\n".join([*lines, f"recorded: {self.provenance.label}"])


def load(path: Path = FILE) -> Comparison:
    """Read a recorded comparison. RecordError: not there, damaged, or something else."""
    return Comparison.read(path, "comparison", "make it with mrv2lab audit initcheck --save FILE")


@dataclass(frozen=True)
class _Done:
    seconds: float
    ended: bool
    output: str

    def told(self) -> dict[str, Any]:
        """What `main` printed; nothing if it did not come to that."""
        lines = [line for line in self.output.splitlines() if line.startswith('{"step_s"')]
        return json.loads(lines[-1]) if lines else {}


def compare(*, timeout_s: float = 120.0) -> Comparison:
    """Run all three.

    Args:
        timeout_s: after which each process is ended.

    Raises:
        BadInput: this machine has no GPU, no vLLM, or no compute-sanitizer; or the audit did not end.
    """
    check("flashmla_lazy_init")
    if shutil.which(SANITIZER[0]) is None:
        raise BadInput(f"{SANITIZER[0]} is not here; it comes with the CUDA toolkit")
    plain, sanitized = (_timed([*before, *_program("plain")], timeout_s) for before in ((), SANITIZER))
    audited = _timed(_program("audit"), timeout_s)
    told = audited.told()
    if not told:
        raise BadInput(f"the audit did not end within {timeout_s:g} s:\n{audited.output[-2000:]}")
    report = AuditReport.of(told["report"])
    made_by = sources.of("vllm", "live.initcheck", besides=["live.rung"])  # which only says what is missing
    return Comparison(
        provenance=provenance(0, uses_gpu=True, made_by=made_by).model_copy(update={"vllm": TARGET}),
        plain_s=plain.seconds,
        plain_step_s=plain.told().get("step_s"),
        plain_ended=plain.ended,
        audit_s=audited.seconds,
        audit_step_s=told["step_s"],
        found=[f"{finding.kind}: {finding.subject}" for finding in report.findings],
        initcheck_s=sanitized.seconds,
        initcheck_step_s=sanitized.told().get("step_s"),
        initcheck_ended=sanitized.ended,
        initcheck_reports=sanitized.output.count(_REPORT),
    )


def _program(mode: str) -> list[str]:
    return [sys.executable, "-m", "mrv2lab.live.initcheck", mode]


def _timed(command: Sequence[str], timeout_s: float) -> _Done:
    start = time.perf_counter()
    try:
        output, ended = subprocess.run(command, capture_output=True, timeout=timeout_s).stdout, True
    except subprocess.TimeoutExpired as stopped:
        output, ended = stopped.stdout or b"", False
    return _Done(time.perf_counter() - start, ended, output.decode(errors="replace"))


def program() -> Any:
    """Attend eagerly by a plan that lies in a graph: its planner has been captured and has not run."""
    from mrv2lab.live.flash_mla import Attention

    attention = Attention()
    attention.metadata()  # what is imported for it is no part of the step

    def step() -> torch.Tensor:
        metadata = attention.metadata()
        step.graph = capture(lambda: attention(metadata), backend="cuda")  # type: ignore[attr-defined]
        return attention(metadata)

    return step


def main(mode: str) -> None:
    """Run the program, or audit it; print how long that took, and the report, as JSON."""
    step = program()
    torch.cuda.synchronize()
    start, report = time.perf_counter(), None
    if mode == "audit":
        report = json.loads(audit(step, captured=False, backend="cuda").to_json())
    else:
        step()
    torch.cuda.synchronize()
    print(json.dumps({"step_s": time.perf_counter() - start, "report": report}))


if __name__ == "__main__":
    main(sys.argv[1])
