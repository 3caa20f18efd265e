"""Audits vLLM's own graphs inside the engine: captures are recorded, then one step of each size is compared.

Nothing in vLLM is changed. While it is imported, `torch.cuda.CUDAGraph` is made observable; `capture_model`
is watched where the engine calls it; and where the runner would replay, the step is run both ways first.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from mrv2lab.audit import AuditReport, Engine, EngineAudit
from mrv2lab.errors import AuditError
from mrv2lab.graphs import capture
from mrv2lab.graphs.foreign import observable_graphs


@contextmanager
def attached() -> Iterator["Steps"]:
    """To be entered before vLLM is imported. The next engine that captures inside is audited.

    Yields:
        Its steps, of which reports come while it serves.
    """
    with observable_graphs():
        from vllm.v1.worker.gpu.model_runner import GPUModelRunner

        steps, original = Steps(), GPUModelRunner.capture_model

        def capture_model(self: Any) -> int:
            steps.watch_capture(self, lambda: original(self))
            return 0

        GPUModelRunner.capture_model = capture_model
        try:
            yield steps
        finally:
            GPUModelRunner.capture_model = original


@dataclass
class Steps:
    """The steps of an engine's runner, of which the first of each size is audited."""

    runner: Any = None
    reports: dict[Any, AuditReport] = field(default_factory=dict)  # by `BatchExecutionDescriptor`
    is_serving: bool = False  # set it once the engine stands: steps of its own warm-up are not audited

    def watch_capture(self, runner: Any, capture_model: Callable[[], Any]) -> None:
        """Let the runner capture; from then on it replays no size that is new without an audit.

        Raises:
            AuditError: torch.compile has made the code that runs: most of what that launches nobody sees.
        """
        if runner.vllm_config.compilation_config.mode:
            raise AuditError(
                "the engine runs compiled code, of which audits see little; mode 0 compiles none"
            )
        self.runner = runner
        self._capture = capture_model
        self._audit = EngineAudit(self._engine("capture_model", lambda: None, lambda: None), backend="cuda")
        self._audit.capture()
        for name in ("run_fullgraph", "run_pw_graph"):  # one graph, or segments that break at attention
            self._watch(name)

    def _watch(self, name: str) -> None:
        manager = self.runner.cudagraph_manager
        original = getattr(manager, name)

        def replay(*args: Any) -> Any:
            prepared = sys._getframe(1).f_locals
            desc = prepared["batch_desc"]
            if self.is_serving and desc not in self.reports:
                step = _Step(self.runner, desc, prepared, partial(original, *args))
                self.reports[desc] = self._compare(step)
            return original(*args)

        setattr(manager, name, replay)

    def sizes(self) -> list[int]:
        """Numbers of requests to serve at once, so that every size is met."""
        captured = self.runner.cudagraph_manager._capture_descs.values()
        return sorted({desc.num_reqs or desc.num_tokens for descs in captured for desc in descs})

    def _compare(self, step: "_Step") -> AuditReport:
        name = f"{type(self.runner.model).__name__}, {step.desc.num_tokens} tokens"
        ways = {"fresh": step.prepare, "afresh": step.afresh}
        return self._audit.step(self._engine(name, step.run, step.eager, **ways))

    def _engine(self, name: str, run: Callable[[], Any], eager: Callable[[], Any], **more: Any) -> Engine:
        anchor, roots = type(self.runner.model).forward, {"runner": self.runner}
        return Engine(name, self._capture, run, eager, anchor=anchor, roots=roots, **more)


class _Step:
    """One step that `execute_model` has prepared: its inputs lie in the buffers.

    Args:
        prepared: the local variables of `execute_model`.
    """

    def __init__(self, runner: Any, desc: Any, prepared: dict[str, Any], replay: Callable[[], Any]):
        self.runner, self.desc, self.replay = runner, desc, replay
        self.batch: Any = prepared["input_batch"]
        self.inputs: dict[str, Any] = prepared["model_inputs"]
        self.block_tables, self.slot_mappings = prepared["block_tables"], prepared["slot_mappings"]
        self.by_layer, self.across_dp = prepared["slot_mappings_by_layer"], prepared["num_tokens_across_dp"]

    def prepare(self) -> None:
        """Attention metadata that nobody has used, as `execute_model` makes it for every step."""
        runner = self.runner
        self.metadata = runner.model_state.prepare_attn(
            self.batch, self.desc.cg_mode, self.block_tables, self.slot_mappings,
            runner.attn_groups, runner.kv_cache_config,
        )  # fmt: skip

    def run(self) -> torch.Tensor:
        """As the runner does: the graph, or its segments and the attention between them."""
        with self._context(self.desc.cg_mode):
            return self._rows(self.replay())

    def eager(self) -> torch.Tensor:
        """The same step with no graph."""
        from vllm.config import CUDAGraphMode

        with self._context(CUDAGraphMode.NONE):
            return self._rows(self.runner.model(**self.inputs))

    def _context(self, mode: Any) -> AbstractContextManager[Any]:
        """The forward context that `execute_model` sets for a step."""
        from vllm.forward_context import BatchDescriptor, set_forward_context

        num_tokens = self.batch.num_tokens_after_padding
        context: AbstractContextManager[Any] = set_forward_context(
            self.metadata,
            self.runner.vllm_config,
            num_tokens=num_tokens,
            cudagraph_runtime_mode=mode,
            num_tokens_across_dp=self.across_dp,
            batch_descriptor=BatchDescriptor(num_tokens, has_lora=self.runner.lora_config is not None),
            slot_mapping=self.by_layer,
        )
        return context

    def afresh(self) -> Any:
        """The eager step, captured: which kernels it launches."""
        return capture(self.eager, backend="cuda")

    def _rows(self, output: Any) -> torch.Tensor:
        """Hidden states of the batch; rows of padding hold whatever they hold."""
        hidden_states: torch.Tensor = output[0] if isinstance(output, tuple) else output
        return hidden_states[: self.batch.num_tokens]
