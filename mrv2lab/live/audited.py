"""Audits of the real engine, each in a process of its own, and the file that keeps what they found."""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mrv2lab.audit import AuditReport
from mrv2lab.errors import BadInput, choose
from mrv2lab.live import launch, scenarios
from mrv2lab.live.audit import FIRST
from mrv2lab.live.audit_worker import AUDITED
from mrv2lab.live.releases import installed
from mrv2lab.live.rung import ENVIRONMENT, check
from mrv2lab.results import RECORDS, Kept, Strict
from mrv2lab.upstream.releases import TARGET

FILE = RECORDS / "audit-vllm.json"
MODEL_TIMEOUT_S = 1800  # each size of each scenario is a step that is run six times
WORKER = (sys.executable, "-m", "mrv2lab.live.audit_worker")


class EngineAuditFailed(BadInput):
    """The engine that was to be audited did not serve."""


def run(jobs: Sequence[launch.Job], *, at_once: int, on_progress: launch.OnProgress) -> list["EngineAudited"]:
    """Audit engines, each in a process of its own.

    Raises:
        EngineAuditFailed: one ended without reports; with its own error line.
    """
    found = []
    for ended in launch.run_all(jobs, at_once=at_once, command=WORKER, on_progress=on_progress):
        if ended.crash is not None:
            what = f"{ended.job.case} {ended.job.variant}".strip()
            raise EngineAuditFailed(f"{what}: {ended.crash.reason}: {ended.crash.message}")
        assert ended.document is not None  # a run that did not crash has one
        found.append(EngineAudited(case=ended.job.case, variant=ended.job.variant, **ended.document))
    return found


def jobs_of(case: str) -> list[launch.Job]:
    """One for each variant of a case that can be audited in the engine.

    Raises:
        BadInput: none can, or this machine cannot run the engine.
    """
    choose("case", case, list(AUDITED))
    check(case)
    return [launch.Job(case, name, ENVIRONMENT | audited.env) for name, audited in AUDITED[case].items()]


def job_of_model(
    model: str, adapters: Sequence[str], options: Sequence[str], scenario: Sequence[str] = ()
) -> launch.Job:
    """The audit of a checkpoint.

    Args:
        adapters: folders of PEFT adapters; requests take them in turn.
        options: `name=value`, the value as JSON or, if it is none, as text.
        scenario: names of `scenarios.SCENARIOS`, or `all`.

    Raises:
        BadInput: an option without a value, an unknown scenario, or this machine cannot run the engine.
    """
    names = scenarios.chosen(scenario or [FIRST])
    values: dict[str, Any] = {}
    for option in options:
        name, found, text = option.partition("=")
        if not found:
            raise BadInput(f"--engine {option}: possible: name=value, an argument of vllm.LLM")
        try:
            values[name] = json.loads(text)
        except ValueError:
            values[name] = text
    check("lora_short_circuit", installed() or TARGET)  # one GPU, and vLLM of any release
    settings = {"model": model, "adapters": list(adapters), "options": values, "scenarios": names}
    return launch.Job("vllm", model, ENVIRONMENT | _given(), settings, timeout_s=MODEL_TIMEOUT_S)


def _given() -> dict[str, str]:
    """Of the engine's environment what the caller has set otherwise: a runner, for example."""
    return {name: os.environ[name] for name in ENVIRONMENT if name in os.environ}


class EngineAudited(Strict):
    """One engine: a case with a variant, or `vllm` with a model; a report for each size."""

    case: str
    variant: str
    reports: list[dict[str, Any]]
    left_out: tuple[str, ...] = ()  # scenarios that it does not support, and why

    def read(self) -> list[AuditReport]:
        """The reports."""
        return [AuditReport.of(document) for document in self.reports]


class EngineAudits(Kept):
    """Engines audited by one command on one machine."""

    audits: list[EngineAudited]


def load(path: Path = FILE) -> EngineAudits:
    """Read recorded audits of the engine. RecordError: not there, damaged, or something else."""
    return EngineAudits.read(path, "audits of the engine", "make them with mrv2lab audit vllm")
