"""Steps of the V1 model runner (`v1/worker/gpu_model_runner.py`), as audits meet them and run them again.

`execute_model` sets a forward context and calls `_model_forward` in it; whether graphs are replayed there,
and which, wrappers around the model and its pieces read from that context (`compilation/cuda_graph.py` and
`breakable_cudagraph.py`). So the same call in a context whose mode is NONE is the step without graphs, and
with whatever else the mode chooses: from 0.28.0 on a few layers and models ask for it, from 0.31.0 on ROCm's
AITER all-reduce does (`distributed/device_communicators/cuda_communicator.py`). Read in 0.23.0 to 0.33.0.
"""

import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from mrv2lab.errors import AuditError
from mrv2lab.live.v2 import Meeting, Repeated, locals_of, model_of, require_repeatable, rows

FORWARD, BUILD = "_model_forward", "_build_attention_metadata"
"""Methods of the runner: the first one no other runner has, the second one makes what attention reads."""
NUM_TOKENS = "num_tokens_unpadded"
"""Local variable of `execute_model`: rows that are real."""


class Key(NamedTuple):
    """What a graph is chosen by: the mode, and vLLM's `BatchDescriptor`."""

    cg_mode: Any
    desc: Any

    @property
    def num_tokens(self) -> int:
        return int(self.desc.num_tokens)

    @property
    def num_reqs(self) -> int | None:
        """None where any number of requests goes with it, as with pieces."""
        return self.desc.num_reqs  # type: ignore[no-any-return]

    @property
    def num_active_loras(self) -> int:
        return int(getattr(self.desc, "num_active_loras", 0))


def check(runner: Any) -> None:
    """AuditError: what this runner prepares for a step cannot be read."""
    methods = (name for name in (FORWARD, BUILD) if hasattr(runner, name))
    there = {*locals_of(type(runner).execute_model), *methods}
    if lost := sorted({NUM_TOKENS, FORWARD, BUILD} - there):
        raise AuditError(f"execute_model of this vLLM has no {', '.join(lost)}, which an audit reads")
    parallel = runner.vllm_config.parallel_config
    if (size := getattr(parallel, "world_size", 1)) > 1:
        raise AuditError(f"the V1 runner is audited on one rank, and here are {size}")
    if getattr(parallel, "use_ubatching", False):
        raise AuditError("the V1 runner is not audited with microbatches: they run in threads of their own")
    require_repeatable(runner)


def captured(runner: Any) -> list[Key]:
    """Every key that has a graph."""
    return [
        Key(mode, desc) for mode, descs in runner.cudagraph_dispatcher.get_capture_descs() for desc in descs
    ]


def mode(runner: Any) -> str:
    """Its `cudagraph_mode`."""
    return str(runner.cudagraph_dispatcher.cudagraph_mode.name)


def watch(steps: Meeting) -> None:
    """Have each step met that the runner is about to replay."""
    runner = steps.runner
    forward, build = getattr(runner, FORWARD), getattr(runner, BUILD)
    again: Callable[[], Any] | None = None

    def build_metadata(*args: Any, **kwargs: Any) -> Any:
        nonlocal again
        again = partial(build, *args, **kwargs)
        return again()

    def model_forward(*args: Any, **kwargs: Any) -> Any:
        from vllm.config import CUDAGraphMode
        from vllm.forward_context import get_forward_context

        context, run = get_forward_context(), partial(forward, *args, **kwargs)
        key = Key(context.cudagraph_runtime_mode, context.batch_descriptor)
        if key.cg_mode != CUDAGraphMode.NONE and not steps.skips(key):
            num_tokens = sys._getframe(1).f_locals[NUM_TOKENS]
            prepared = {"batch_desc": key, "context": context, "again": again, "num_tokens": num_tokens}
            steps.meet(Step, prepared, run)
        return run()

    setattr(runner, BUILD, build_metadata)
    setattr(runner, FORWARD, model_forward)


class Step(Repeated):
    """One step that `execute_model` has prepared: its inputs lie in the buffers.

    Args:
        prepared: its key, forward context, real rows, and what makes its attention metadata `again`.
        forward: the call of `_model_forward`.
    """

    def __init__(self, runner: Any, prepared: dict[str, Any], forward: Callable[[], Any]):
        super().__init__(model_of(runner))
        self.runner = runner
        self.desc, self.context = prepared["batch_desc"], prepared["context"]
        self.again, self.num_tokens = prepared["again"], prepared["num_tokens"]
        self.forward = forward

    def prepare(self) -> None:
        """Attention metadata that nobody has used, as `execute_model` makes it for every step."""
        self.put_back()
        with self.runner.synchronize_input_prep():  # it fills memory that copies of the step before may read
            self.metadata, *_ = self.again()

    def run(self) -> Any:
        """As the runner does: the graph, or its segments and the attention between them."""
        return self._in_mode(self.desc.cg_mode)

    def eager(self) -> Any:
        """The same step with no graph."""
        from vllm.config import CUDAGraphMode

        return self._in_mode(CUDAGraphMode.NONE)

    def _in_mode(self, mode: Any) -> Any:
        """In a context of its own, as that of the step was when it began."""
        from vllm.forward_context import override_forward_context

        own = {"attn_metadata": self.metadata, "cudagraph_runtime_mode": mode}
        more = dict(self.context.additional_kwargs)
        context = replace(self.context, **own, additional_kwargs=more)
        with override_forward_context(context):
            return rows(self.forward(), self.num_tokens)
