"""Audits vLLM's own graphs inside the engine: captures are recorded, then one step of each size is compared.

Nothing in vLLM is changed. While it is imported, `torch.cuda.CUDAGraph` is made observable; `capture_model`
is watched where the engine calls it; and where the runner would replay, the step is run both ways first.
"""

import os
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any
from unittest.mock import patch

import torch

from mrv2lab.audit import AuditReport, Engine, EngineAudit, Finding
from mrv2lab.errors import AuditError
from mrv2lab.graphs import capture
from mrv2lab.graphs.foreign import observable_graphs
from mrv2lab.live import drafts, encoders, v1, v2
from mrv2lab.live.ranks import Ranks, apart
from mrv2lab_vllm import see_allocations

_BESIDE = drafts, encoders  # what has graphs of its own beside the step
FIRST = "lengths"  # the scenario that goes without saying
_INSTALLED = re.compile(r"(?<!\S)/\S*?/(?=vllm/)")  # a folder, in words


@contextmanager
def attached() -> Iterator["Steps"]:
    """To be entered before vLLM is imported. The next engine that captures inside is audited.

    Yields:
        Its steps, of which reports come while it serves.
    """
    see_allocations()
    with observable_graphs():
        from vllm.v1.worker import gpu_model_runner
        from vllm.v1.worker.gpu import model_runner

        steps, stack = Steps(), ExitStack()
        with stack:
            for runners in (gpu_model_runner.GPUModelRunner, model_runner.GPUModelRunner):
                watched = _watched(steps, runners.capture_model)
                stack.enter_context(patch.object(runners, "capture_model", watched))
            yield steps


def _watched(steps: "Steps", original: Callable[..., int]) -> Callable[..., int]:
    def capture_model(self: Any, **how: Any) -> int:
        capture = partial(original, self, **how)
        # Such captures, of V2 in later releases, only measure memory, and are thrown away.
        return capture() if how.get("profile_only") else steps.watch_capture(self, capture)

    return capture_model


def way_of(runner: Any) -> Any:
    """The module that knows how this runner makes and replays its steps."""
    return v1 if hasattr(type(runner), v1.FORWARD) else v2


def why_not(config: Any) -> str:
    """Why an engine with this `VllmConfig` is not audited, decided here and nowhere else; empty if it is."""
    for name in ("data_parallel_size", "prefill_context_parallel_size"):  # nobody asks these to go along
        if (size := getattr(config.parallel_config, name, 1)) > 1:
            return f"{size} ranks wait for each other inside a step ({name}), and each audit goes its own way"
    several = getattr(config.parallel_config, "tensor_parallel_size", 1) > 1
    if several and os.environ.get(NCCL_MEMORY, "0") not in ("", "0"):
        return f"ranks register memory together, as it is allocated ({NCCL_MEMORY}), and audits allocate more"
    if getattr(getattr(config, "speculative_config", None), "enable_adaptive_verification", False):
        return "drafts are chosen by how long graphs took when they were captured, and an audit adds to them"
    return ""


NCCL_MEMORY = "VLLM_USE_NCCL_SYMM_MEM"


@dataclass
class Steps:
    """The steps of an engine's runner, of which the first of each size in each scenario is audited."""

    runner: Any = None
    # by scenario and key: a `BatchExecutionDescriptor`, or what V1 has instead
    reports: dict[Any, AuditReport] = field(default_factory=dict)
    scenario: str | None = None  # None until the engine stands: steps of its own warm-up are not audited
    backend: str = "cuda"
    ranks: Ranks = field(default_factory=Ranks)  # those that are inside the same step
    rank_name: str = ""  # where the engine has several
    picked: list[str] = field(default_factory=list)  # of several ranks: the key of each step, graph or none
    tried: set[Any] = field(default_factory=set)  # keys of `reports`, also those that could not be audited
    failed: list[str] = field(default_factory=list)  # of one of several ranks: why it could not audit a step

    def watch_capture(self, runner: Any, capture_model: Callable[[], int]) -> int:
        """Let the runner capture; from then on it replays no size that is new without an audit.

        Returns:
            What `capture_model` does: bytes of device memory.

        Raises:
            AuditError: `why_not` or `check_steps` says why.
        """
        if why := why_not(runner.vllm_config):
            raise AuditError(why)
        way_of(runner).check(runner)
        self.runner, self.ranks = runner, Ranks.of(runner.vllm_config)
        if (size := getattr(runner.vllm_config.parallel_config, "world_size", 1)) > 1:
            self.rank_name = f"rank {torch.distributed.get_rank()} of {size}"
        taken: list[int] = []
        self._capture = lambda: taken.append(capture_model())
        engine = self._engine("capture_model", lambda: None, lambda: None)
        self._audit = EngineAudit(engine, backend=self.backend)
        self._audit.capture()
        way_of(runner).watch(self)
        for beside in _BESIDE:
            beside.watch(self)
        return taken[0]

    def pick(self, desc: Any) -> None:
        """A step is given a key. AuditError: ranks that are inside it together have not the same."""
        self.picked.append(str(desc))
        if not self.ranks.agree(desc):
            raise AuditError(apart(self.ranks.gather(str(desc))))

    def skips(self, desc: Any) -> bool:
        """Whether a replay needs no look at its step. It is given a key, or the model where pieces run."""
        return self.scenario is None

    def meet(self, kind: v2.Kind, prepared: dict[str, Any], replay: Callable[[], Any]) -> None:
        """A step is about to be replayed; whatever is done here leaves what it works on as it was.

        Args:
            kind: of the step.
            prepared: what the runner has made for it, like the local variables of `execute_model`.
        """
        key = self.scenario, prepared["batch_desc"]
        if key in self.tried:
            return
        self.tried.add(key)  # also where it fails, for it may be another rank's that does not
        try:
            self.reports[key] = self.audit(kind(self.runner, prepared, replay))
        except AuditError as error:
            if not self.rank_name:
                raise
            self.failed.append(f"{self.rank_name}: {error}")  # others of a pipeline would wait for this step

    def audit(self, step: v2.Met) -> AuditReport:
        """Compare a step with its eager twin. AuditError: it cannot be."""
        more: dict[str, Any] = {"fresh": step.prepare, "is_padded": step.is_padded}
        if self.ranks.group is None:  # peers go on to map what the custom all-reduce has met in a capture
            more["afresh"] = partial(capture, step.eager, backend=self.backend)
        engine = self._engine(self._name(step), step.run, step.eager, **more)
        try:
            return self.ranks.audit(self._audit, engine)
        finally:
            step.put_back()

    def captured(self) -> list[Any]:
        """The key of every size that has a graph."""
        return [] if self.runner is None else way_of(self.runner).captured(self.runner)

    def apart(self) -> list[str]:
        """Where ranks have not picked the same key: here there is one."""
        return []

    def left_out(self) -> list[str]:
        """What replays graphs and is not audited, and why."""
        told = (one.left_out(self.runner) for one in (*_BESIDE, v2) if self.runner is not None)
        return [*filter(None, told)]

    def why_none(self) -> str:
        """Why there is no report."""
        if self.runner is None:
            return "it captures nothing (enforce_eager), or its runner is none that is watched"
        modes = ", ".join(sorted({desc.cg_mode.name for desc in self.captured()}))
        mode = way_of(self.runner).mode(self.runner)
        return f"cudagraph_mode is {mode}, captured: {modes or 'nothing'}; no step served was given a graph"

    def _name(self, step: v2.Met) -> str:
        """What sets this step apart from the others of the engine."""
        desc = step.desc
        modes = {other.cg_mode for other in self.captured()}
        adapters = getattr(desc, "num_active_loras", 0)
        parts = [type(step.model).__name__, f"{desc.num_tokens} tokens"]
        parts += [desc.cg_mode.name] if len(modes) > 1 else []
        parts += [f"{adapters} active adapters"] if adapters else []
        parts += [f"drafted token {desc.token}"] if isinstance(desc, drafts.Key) else []
        parts += ["encoder"] if isinstance(desc, encoders.Key) else []
        parts += [self.rank_name] if self.rank_name else []
        parts += [f"scenario {self.scenario}"] if self.scenario != FIRST else []
        return ", ".join(parts)

    def _engine(self, name: str, run: Callable[[], Any], eager: Callable[[], Any], **more: Any) -> Engine:
        anchor = [type(v2.model_of(self.runner)).forward]
        anchor += [function for one in _BESIDE for function in one.anchors(self.runner)]
        roots = {"runner": self.runner}
        return Engine(name, self._capture, run, eager, anchor=anchor, roots=roots, **more)


def without_places(report: AuditReport) -> AuditReport:
    """The report with paths that begin at the package, not at where it is installed, in its words as well."""
    words = partial(_INSTALLED.sub, "")

    def short(finding: Finding) -> Finding:
        told = replace(finding, evidence=words(finding.evidence))
        if finding.where is None or "/vllm/" not in finding.where.file:
            return told
        inside = "vllm/" + finding.where.file.split("/vllm/", 1)[1]
        return replace(told, where=replace(finding.where, file=inside))

    findings, notes = tuple(map(short, report.findings)), tuple(map(words, report.notes))
    return replace(report, findings=findings, notes=notes)
