"""Audits vLLM's own graphs inside the engine: its captures are recorded, then one step of each size is compared.

Nothing in vLLM is changed. While it is imported, ops that Python implements are made visible and
`torch.cuda.CUDAGraph` observable; `capture_model` is put off until the engine stands, so that it can be
watched; and where the runner would replay, the step is run both ways first.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from mrv2lab.audit import AuditReport, Engine, EngineAudit
from mrv2lab.audit.custom_ops import visible_custom_ops
from mrv2lab.graphs import capture
from mrv2lab.graphs.foreign import observable_graphs
from mrv2lab.live.engine import runner_of


@contextmanager
def attached() -> Iterator[Callable[[Any], int]]:
    """To be entered before vLLM is imported: its ops and graphs can be audited, and no engine captures by itself.

    Yields:
        `GPUModelRunner.capture_model`, for `audit_engine`.
    """
    with observable_graphs(), visible_custom_ops():
        from vllm.v1.worker.gpu.model_runner import GPUModelRunner

        original = GPUModelRunner.capture_model
        GPUModelRunner.capture_model = lambda self: 0
        try:
            yield original
        finally:
            GPUModelRunner.capture_model = original


def audit_engine(
    llm: Any, capture_model: Callable[[Any], int], serve: Callable[[int], Any]
) -> list[AuditReport]:
    """Let an engine capture, then audit one step of each size that it has a graph for.

    Args:
        llm: made inside `attached`.
        capture_model: `GPUModelRunner.capture_model` as it is to run.
        serve: serves so many requests at once, with at least two tokens each.

    Returns:
        A report for each size that a step was dispatched to.
    """
    runner = runner_of(llm)
    steps = _Steps(runner, lambda: capture_model(runner))
    steps.audit.capture()
    with steps.intercepted():
        for desc in sorted(runner.cudagraph_manager.graphs, key=lambda desc: desc.num_tokens):
            if desc.num_reqs and desc not in steps.reports:
                serve(desc.num_reqs)
    return list(steps.reports.values())


@dataclass
class _Steps:
    """The steps of a runner, of which the first of each size is audited."""

    runner: Any
    capture: Callable[[], Any]
    reports: dict[Any, AuditReport] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.audit = EngineAudit(self._engine("capture_model", lambda: None, lambda: None), backend="cuda")

    def _engine(self, name: str, run: Callable[[], Any], eager: Callable[[], Any], **more: Any) -> Engine:
        anchor, roots = type(self.runner.model).forward, {"runner": self.runner}
        return Engine(name, self.capture, run, eager, anchor=anchor, roots=roots, **more)

    @contextmanager
    def intercepted(self) -> Iterator[None]:
        """Inside, `run_fullgraph` audits a size that is new before it replays it."""
        manager = self.runner.cudagraph_manager
        original = manager.run_fullgraph

        def run_fullgraph(desc: Any) -> Any:
            if desc not in self.reports:
                step = _Step(self.runner, desc, sys._getframe(1).f_locals, original)
                name = f"{type(self.runner.model).__name__}, {desc.num_tokens} tokens"
                self.reports[desc] = self.audit.step(
                    self._engine(name, step.run, step.eager, fresh=step.prepare, afresh=step.afresh)
                )
            return original(desc)

        manager.run_fullgraph = run_fullgraph
        try:
            yield
        finally:
            del manager.run_fullgraph


class _Step:
    """One step that `execute_model` has prepared: its inputs lie in the buffers.

    Args:
        prepared: the local variables of `execute_model`.
    """

    def __init__(self, runner: Any, desc: Any, prepared: dict[str, Any], run_fullgraph: Callable[[Any], Any]):
        self.runner, self.desc, self.run_fullgraph = runner, desc, run_fullgraph
        names = ("input_batch", "block_tables", "slot_mappings", "slot_mappings_by_layer", "model_inputs")
        self.batch, self.block_tables, self.slot_mappings, self.by_layer, self.inputs = map(
            prepared.get, names
        )
        self.across_dp = prepared["num_tokens_across_dp"]

    def prepare(self) -> None:
        """Attention metadata that nobody has used, as `execute_model` makes it for every step."""
        runner = self.runner
        self.metadata = runner.model_state.prepare_attn(
            self.batch, self.desc.cg_mode, self.block_tables, self.slot_mappings,
            runner.attn_groups, runner.kv_cache_config,
        )  # fmt: skip

    def run(self) -> torch.Tensor:
        """As the runner does: the graph."""
        return self._rows(self.run_fullgraph(self.desc))

    def eager(self) -> torch.Tensor:
        """The same step with no graph."""
        from vllm.config import CUDAGraphMode
        from vllm.forward_context import BatchDescriptor, set_forward_context

        num_tokens = self.batch.num_tokens_after_padding
        with set_forward_context(
            self.metadata,
            self.runner.vllm_config,
            num_tokens=num_tokens,
            cudagraph_runtime_mode=CUDAGraphMode.NONE,
            num_tokens_across_dp=self.across_dp,
            batch_descriptor=BatchDescriptor(num_tokens, has_lora=self.runner.lora_config is not None),
            slot_mapping=self.by_layer,
        ):
            return self._rows(self.runner.model(**self.inputs))

    def afresh(self) -> Any:
        """The eager step, captured: which kernels it launches."""
        return capture(self.eager, backend="cuda")

    def _rows(self, output: Any) -> torch.Tensor:
        """Hidden states of the batch; rows of padding hold whatever they hold."""
        hidden_states: torch.Tensor = output[0] if isinstance(output, tuple) else output
        return hidden_states[: self.batch.num_tokens]
