"""Steps of Model Runner V2 (`v1/worker/gpu/model_runner.py`), as audits meet them and run them once more."""

import inspect
import sys
from collections.abc import Callable, Mapping, Set
from contextlib import AbstractContextManager
from functools import cache, partial
from operator import is_
from typing import Any, Protocol

import torch

from mrv2lab.errors import AuditError


class Meeting(Protocol):
    """Whoever is told of steps, see `audit.Steps`."""

    runner: Any
    rank_name: str  # where the engine has several
    scenario: str | None

    def skips(self, desc: Any) -> bool: ...

    def meet(self, kind: "Kind", prepared: dict[str, Any], replay: Callable[[], Any]) -> None: ...

    def pick(self, desc: Any) -> None: ...


READ = {
    "batch_desc", "input_batch", "model_inputs", "block_tables", "slot_mappings",
    "slot_mappings_by_layer",
}  # fmt: skip
"""Local variables of `execute_model` that a `Step` reads."""
# The second one, from 0.29.0 on, holds the first one; so does the third, its name from 0.32.0 on.
ACROSS = "num_tokens_across_dp", "dp_sync", "dp_sync_state"


def check(runner: Any) -> None:
    """AuditError: what this runner prepares for a step cannot be read."""
    execute_model = inspect.unwrap(type(runner).execute_model)  # it is decorated
    there = {*execute_model.__code__.co_varnames}
    if lost := sorted(READ - there) or ([] if there & {*ACROSS} else [" or ".join(ACROSS)]):
        kind = type(runner).__name__
        raise AuditError(f"execute_model of this {kind} has no {', '.join(lost)}, which an audit reads")
    require_repeatable(runner)


INNER = "capture_inner_cudagraphs"
"""Method of a `ModelState`, from 0.32.0 on (0.31.0 has none): in 0.32.0 and 0.33.0 those of DeepSeek V4.1 on
NVIDIA alone do anything. Its decoder has graphs inside of the model; in 0.33.0 specialized decode has graphs
that build metadata, which `prepare_attn` replays before the model (`models/deepseek_v41/nvidia`)."""


def left_out(runner: Any) -> str:
    """Which graphs inside of its model are not audited; empty if there are none."""
    kind = type(getattr(runner, "model_state", None))
    owner = next((one.__name__ for one in kind.__mro__ if INNER in vars(one)), "ModelState")
    if owner == "ModelState":
        return ""
    return f"graphs inside of the model are not audited, and replayed in both passes: {kind.__name__}.{INNER}"


def locals_of(method: Any) -> set[str]:
    """Local variables of a method, which may be decorated."""
    code = inspect.unwrap(method).__code__
    return {*code.co_varnames, *code.co_cellvars}


def lacking(kind: type, read: Mapping[str, Set[str]]) -> str:
    """What a class of another release has not, in words, of methods and local variables that are read there;
    empty if it has all."""
    for name, names in read.items():
        if (method := getattr(kind, name, None)) is None:
            return name
        if lost := sorted(names - locals_of(method)):
            return f"{', '.join(lost)} in {name}"
    return ""


def require_repeatable(runner: Any) -> None:
    """AuditError: attention metadata cannot be made a second time. Those of static sinks add their number to
    the lengths of sequences, in place (`model_executor/layers/attention/static_sink_attention.py`).
    """
    groups = (group for groups in getattr(runner, "attn_groups", ()) for group in groups)
    builders = (builder for group in groups for builder in getattr(group, "metadata_builders", ()))
    if any(type(builder).__name__ == "StaticSinkAttentionBuilder" for builder in builders):
        raise AuditError("its attention has static sinks, whose metadata can be made only once for a step")


def captured(runner: Any) -> list[Any]:
    """The `BatchExecutionDescriptor` of every size that has a graph."""
    return [desc for descs in runner.cudagraph_manager._capture_descs.values() for desc in descs]


def mode(runner: Any) -> str:
    """Its `cudagraph_mode`."""
    return str(runner.cudagraph_manager.cudagraph_mode.name)


def watch(steps: Meeting) -> None:
    """Have each step met that the runner is about to replay, and its key picked where there are ranks."""
    for name in ("run_fullgraph", "run_pw_graph"):  # one graph, or segments that break at attention
        _watch(steps, name)
    if steps.rank_name:  # one rank has nobody to compare its keys with
        _watch_keys(steps)


def _watch(steps: Meeting, name: str) -> None:
    manager = steps.runner.cudagraph_manager
    original = getattr(manager, name)

    def replay(*args: Any) -> Any:
        if not steps.skips(args[0]):  # a key, or the model where pieces run
            # The local variables of `execute_model` are all that it has prepared.
            steps.meet(Step, sys._getframe(1).f_locals, partial(original, *args))
        return original(*args)

    setattr(manager, name, replay)


def _watch_keys(steps: Meeting) -> None:
    manager = steps.runner.cudagraph_manager
    original = manager.dispatch

    def dispatch(*args: Any, **kwargs: Any) -> Any:
        desc = original(*args, **kwargs)
        # From 0.31.0 on something else asks in the same step as well, not on all ranks: `FastPrefillHelper`.
        asker = sys._getframe(1).f_locals.get("self", steps.runner)
        if steps.scenario is not None and asker is steps.runner:
            steps.pick(desc)
        return desc

    manager.dispatch = dispatch


_OF_TORCH = {"_parameters", "_buffers", "_modules"}


class Met(Protocol):
    """What can be run more than once: a step, or the pass of a draft."""

    desc: Any  # its key
    model: Any
    is_padded: bool  # see `audit.Engine`

    def prepare(self) -> None: ...

    def run(self) -> Any: ...

    def eager(self) -> Any: ...

    def put_back(self) -> None: ...


Kind = Callable[[Any, dict[str, Any], Callable[[], Any]], Met]
"""Makes it of the runner, of what the runner has prepared, and of the call that replays."""


class Repeated:
    """A step that is run more than once. What its model sets in attributes as it runs is put back before each
    pass and behind the last one: multimodal ones keep there what a step has used up, like the image tokens of
    a prompt (`visual_token_mask` of `ernie45_vl.py`) or how many rows of a buffer it has filled
    (`qwen3_vl.py`).
    """

    is_padded = False

    def __init__(self, model: Any):
        self.model = model
        modules = model.modules() if isinstance(model, torch.nn.Module) else [model]
        self._held = [(vars(one), dict(vars(one))) for one in modules]

    def put_back(self) -> None:
        """As it was when the step came."""
        for now, held in self._held:
            if now.keys() == held.keys() and all(map(is_, now.values(), held.values())):
                continue  # as nearly each module of nearly each step
            for name in [name for name in now if name not in held]:
                del now[name]
            now.update({name: value for name, value in held.items() if name not in _OF_TORCH})


def model_of(runner: Any) -> Any:
    """Its model, without what replays graphs around it."""
    return runner.get_model() if hasattr(runner, "get_model") else runner.model


class Step(Repeated):
    """One step that `execute_model` has prepared: its inputs lie in the buffers.

    Args:
        prepared: the local variables of `execute_model`.
    """

    def __init__(self, runner: Any, prepared: dict[str, Any], replay: Callable[[], Any]):
        super().__init__(model_of(runner))
        self.runner, self.desc, self.replay = runner, prepared["batch_desc"], replay
        self.batch: Any = prepared["input_batch"]
        self.inputs: dict[str, Any] = prepared["model_inputs"]
        self.block_tables, self.slot_mappings = prepared["block_tables"], prepared["slot_mappings"]
        self.by_layer = prepared["slot_mappings_by_layer"]
        older, *newer = map(prepared.get, ACROSS)
        holder = next((one for one in newer if one is not None), None)
        self.across_dp = older if holder is None else holder.num_tokens_across_dp

    def prepare(self) -> None:
        """Attention metadata that nobody has used, as `execute_model` makes it for every step; but for what
        `left_out` tells of."""
        self.put_back()
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
        """The same step without the graph of its key."""
        from vllm.config import CUDAGraphMode

        with self._context(CUDAGraphMode.NONE):
            return self._rows(self.runner.model(**self.inputs))

    def _context(self, mode: Any) -> AbstractContextManager[Any]:
        """The forward context that `execute_model` sets for pieces and eager steps; around a whole graph vLLM
        sets none."""
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
            "batch_descriptor": BatchDescriptor(**known(BatchDescriptor, key)),
            "slot_mapping": self.by_layer,
            "is_padding": getattr(self.batch, "is_padding", None),
        }
        context: AbstractContextManager[Any] = set_forward_context(**known(set_forward_context, told))
        return context

    def _rows(self, output: Any) -> Any:
        return rows(output, self.batch.num_tokens)


def rows(output: Any, num_tokens: int) -> Any:
    """Hidden states of the batch, with auxiliary ones that a draft reads, or those that it hands on; rows of
    padding hold whatever they hold."""
    hidden_states, more = output if isinstance(output, tuple) else (output, ())
    beside = [more] if isinstance(more, torch.Tensor) else more
    real = [each[:num_tokens] for each in (hidden_states, *beside)]
    return real if beside else real[0]


def known(function: Callable[..., Any], arguments: dict[str, Any]) -> dict[str, Any]:
    """Those that this release knows: later ones have more."""
    names = _parameters(getattr(function, "__func__", function))  # else it would keep a runner
    return {name: value for name, value in arguments.items() if name in names}


@cache
def _parameters(function: Callable[..., Any]) -> Set[str]:
    return inspect.signature(function).parameters.keys()
