"""Audits vLLM's own graphs inside the engine: captures are recorded, then one step of each size is compared.

Nothing in vLLM is changed. While it is imported, `torch.cuda.CUDAGraph` is made observable; `capture_model`
is watched where the engine calls it; and where the runner would replay, the step is run both ways first.
"""

import inspect
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any
from unittest.mock import patch

import torch

from mrv2lab.audit import AuditReport, Engine, EngineAudit, Finding
from mrv2lab.errors import AuditError
from mrv2lab.graphs import capture
from mrv2lab.graphs.foreign import observable_graphs
from mrv2lab.live.ranks import Ranks, apart
from mrv2lab_vllm import see_allocations

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
        from vllm.v1.worker.gpu.model_runner import GPUModelRunner

        steps, original = Steps(), GPUModelRunner.capture_model

        def capture_model(self: Any, **how: Any) -> int:
            capture = partial(original, self, **how)
            # Such captures, of 0.30.0 and later, only measure memory, and are thrown away.
            return capture() if how.get("profile_only") else steps.watch_capture(self, capture)

        with patch.object(GPUModelRunner, "capture_model", capture_model):
            yield steps


def why_not(config: Any) -> str:
    """Why an engine with this `VllmConfig` is not audited, decided here and nowhere else; empty if it is."""
    for name in ("data_parallel_size", "prefill_context_parallel_size"):  # nobody asks these to go along
        if (size := getattr(config.parallel_config, name, 1)) > 1:
            return f"{size} ranks wait for each other inside a step ({name}), and each audit goes its own way"
    several = getattr(config.parallel_config, "tensor_parallel_size", 1) > 1
    if several and os.environ.get(NCCL_MEMORY) == "1":
        return f"ranks register memory together, as it is allocated ({NCCL_MEMORY}), and audits allocate more"
    return ""


NCCL_MEMORY = "VLLM_USE_NCCL_SYMM_MEM"
READ = {
    "batch_desc", "input_batch", "model_inputs", "block_tables", "slot_mappings",
    "slot_mappings_by_layer",
}  # fmt: skip
"""Local variables of `execute_model` that a `Step` reads."""
# The second one, from 0.29.0 on, holds the first one; so does the third, its name from 0.32.0 on.
ACROSS = "num_tokens_across_dp", "dp_sync", "dp_sync_state"


def check_steps(runner: Any) -> None:
    """AuditError: what this runner prepares for a step cannot be read."""
    execute_model = inspect.unwrap(type(runner).execute_model)  # it is decorated
    there = {*execute_model.__code__.co_varnames}
    if lost := sorted(READ - there) or ([] if there & {*ACROSS} else [" or ".join(ACROSS)]):
        raise AuditError(f"execute_model of this vLLM has no {', '.join(lost)}, which an audit reads")


@dataclass
class Steps:
    """The steps of an engine's runner, of which the first of each size in each scenario is audited."""

    runner: Any = None
    # by scenario and `BatchExecutionDescriptor`
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
        check_steps(runner)
        self.runner, self.ranks = runner, Ranks.of(runner.vllm_config)
        if (size := getattr(runner.vllm_config.parallel_config, "world_size", 1)) > 1:
            self.rank_name = f"rank {torch.distributed.get_rank()} of {size}"
        taken: list[int] = []
        self._capture = lambda: taken.append(capture_model())
        engine = self._engine("capture_model", lambda: None, lambda: None)
        self._audit = EngineAudit(engine, backend=self.backend)
        self._audit.capture()
        for name in ("run_fullgraph", "run_pw_graph"):  # one graph, or segments that break at attention
            self._watch(name)
        if self.rank_name:  # one rank has nobody to compare its keys with
            self._watch_keys()
        return taken[0]

    def _watch_keys(self) -> None:
        manager = self.runner.cudagraph_manager
        original = manager.dispatch

        def dispatch(*args: Any, **kwargs: Any) -> Any:
            desc = original(*args, **kwargs)
            if self.scenario is not None:
                self.pick(desc)
            return desc

        manager.dispatch = dispatch

    def pick(self, desc: Any) -> None:
        """A step is given a key. AuditError: ranks that are inside it together have not the same."""
        self.picked.append(str(desc))
        if not self.ranks.agree(desc):
            raise AuditError(apart(self.ranks.gather(str(desc))))

    def _watch(self, name: str) -> None:
        manager = self.runner.cudagraph_manager
        original = getattr(manager, name)

        def replay(*args: Any) -> Any:
            if not self.skips(args[0]):
                # The local variables of `execute_model` are all that it has prepared.
                self.meet(sys._getframe(1).f_locals, partial(original, *args))
            return original(*args)

        setattr(manager, name, replay)

    def skips(self, desc: Any) -> bool:
        """Whether a replay needs no look at its step. It is given a key, or the model where pieces run."""
        return self.scenario is None

    def meet(self, prepared: dict[str, Any], replay: Callable[[], Any]) -> None:
        """A step is about to be replayed; whatever is done here leaves what it works on as it was.

        Args:
            prepared: the local variables of `execute_model`.
        """
        key = self.scenario, prepared["batch_desc"]
        if key in self.tried:
            return
        self.tried.add(key)  # also where it fails, for it may be another rank's that does not
        try:
            self.reports[key] = self.audit(Step(self.runner, prepared, replay))
        except AuditError as error:
            if not self.rank_name:
                raise
            self.failed.append(f"{self.rank_name}: {error}")  # others of a pipeline would wait for this step

    def audit(self, step: "Step") -> AuditReport:
        """Compare a step with its eager twin. AuditError: it cannot be."""
        more: dict[str, Any] = {"fresh": step.prepare}
        if self.ranks.group is None:  # peers go on to map what the custom all-reduce has met in a capture
            more["afresh"] = partial(capture, step.eager, backend=self.backend)
        engine = self._engine(self._name(step.desc), step.run, step.eager, **more)
        return self.ranks.audit(self._audit, engine)

    def captured(self) -> list[Any]:
        """The `BatchExecutionDescriptor` of every size that has a graph."""
        if self.runner is None:
            return []
        return [desc for descs in self.runner.cudagraph_manager._capture_descs.values() for desc in descs]

    def apart(self) -> list[str]:
        """Where ranks have not picked the same key: here there is one."""
        return []

    def why_none(self) -> str:
        """Why there is no report."""
        if self.runner is None:
            return "its runner is not Model Runner V2, or it captures nothing (enforce_eager)"
        modes = ", ".join(sorted({desc.cg_mode.name for desc in self.captured()}))
        mode = self.runner.cudagraph_manager.cudagraph_mode.name
        return f"cudagraph_mode is {mode}, captured: {modes or 'nothing'}; no step served was given a graph"

    def _name(self, desc: Any) -> str:
        """What sets this step apart from the others of the engine."""
        modes = {other.cg_mode for other in self.captured()}
        adapters = getattr(desc, "num_active_loras", 0)
        parts = [type(self.runner.model).__name__, f"{desc.num_tokens} tokens"]
        parts += [desc.cg_mode.name] if len(modes) > 1 else []
        parts += [f"{adapters} active adapters"] if adapters else []
        parts += [self.rank_name] if self.rank_name else []
        parts += [f"scenario {self.scenario}"] if self.scenario != FIRST else []
        return ", ".join(parts)

    def _engine(self, name: str, run: Callable[[], Any], eager: Callable[[], Any], **more: Any) -> Engine:
        anchor, roots = type(self.runner.model).forward, {"runner": self.runner}
        return Engine(name, self._capture, run, eager, anchor=anchor, roots=roots, **more)


class Step:
    """One step that `execute_model` has prepared: its inputs lie in the buffers.

    Args:
        prepared: the local variables of `execute_model`.
    """

    def __init__(self, runner: Any, prepared: dict[str, Any], replay: Callable[[], Any]):
        self.runner, self.desc, self.replay = runner, prepared["batch_desc"], replay
        self.batch: Any = prepared["input_batch"]
        self.inputs: dict[str, Any] = prepared["model_inputs"]
        self.block_tables, self.slot_mappings = prepared["block_tables"], prepared["slot_mappings"]
        self.by_layer = prepared["slot_mappings_by_layer"]
        older, *newer = map(prepared.get, ACROSS)
        holder = next((one for one in newer if one is not None), None)
        self.across_dp = older if holder is None else holder.num_tokens_across_dp

    def prepare(self) -> None:
        """Attention metadata that nobody has used, as `execute_model` makes it for every step."""
        runner = self.runner
        self.metadata = runner.model_state.prepare_attn(
            self.batch, self.desc.cg_mode, self.block_tables, self.slot_mappings,
            runner.attn_groups, runner.kv_cache_config,
        )  # fmt: skip

    def run(self) -> Any:
        """As the runner does: the graph, or its segments and the attention between them."""
        with self._context(self.desc.cg_mode):
            return self._rows(self.replay())

    def eager(self) -> Any:
        """The same step with no graph."""
        from vllm.config import CUDAGraphMode

        with self._context(CUDAGraphMode.NONE):
            return self._rows(self.runner.model(**self.inputs))

    def _context(self, mode: Any) -> AbstractContextManager[Any]:
        """The forward context that `execute_model` sets for a step."""
        from vllm.forward_context import BatchDescriptor, set_forward_context

        num_tokens = self.batch.num_tokens_after_padding
        key = {"num_tokens": num_tokens, "has_lora": self.runner.lora_config is not None}
        key["num_active_loras"] = getattr(self.desc, "num_active_loras", 0)
        told = {
            "attn_metadata": self.metadata,
            "vllm_config": self.runner.vllm_config,
            "num_tokens": num_tokens,
            "cudagraph_runtime_mode": mode,
            "num_tokens_across_dp": self.across_dp,
            "batch_descriptor": BatchDescriptor(**_known(BatchDescriptor, key)),
            "slot_mapping": self.by_layer,
            "is_padding": getattr(self.batch, "is_padding", None),
        }
        context: AbstractContextManager[Any] = set_forward_context(**_known(set_forward_context, told))
        return context

    def _rows(self, output: Any) -> Any:
        """Hidden states of the batch, with auxiliary ones that a draft reads; rows of padding hold whatever
        they hold."""
        hidden_states, auxiliary = output if isinstance(output, tuple) else (output, ())
        rows = [each[: self.batch.num_tokens] for each in (hidden_states, *auxiliary)]
        return rows if auxiliary else rows[0]


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


def _known(function: Callable[..., Any], arguments: dict[str, Any]) -> dict[str, Any]:
    """Those that this release knows: later ones have more."""
    names = inspect.signature(function).parameters
    return {name: value for name, value in arguments.items() if name in names}
