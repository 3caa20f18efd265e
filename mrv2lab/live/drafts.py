"""Drafts of Model Runner V2 that a model of their own makes, as audits meet them: Eagle, MTP.

The first token of each draft comes of a pass over the tokens of the step, with the attention metadata of the
target model, and each further one of a pass over one token a request
(`v1/worker/gpu/spec_decode/autoregressive/speculator.py` of vLLM 0.23.0 to 0.31.0, `target_dependent_ar/` of
0.32.0 and 0.33.0). Each of the two kinds of passes has a manager of graphs of its own.
"""

import inspect
import sys
from collections.abc import Callable
from copy import copy
from dataclasses import is_dataclass
from functools import partial
from types import FrameType
from typing import Any, NamedTuple

from mrv2lab.live import v1
from mrv2lab.live.v2 import Meeting, Repeated, known, lacking

MANAGERS = "prefill_cudagraph_manager", "decode_cudagraph_manager"
READ = {
    "propose": {
        "num_reqs", "attn_metadata", "slot_mappings", "num_tokens_across_dp", "mm_inputs", "dummy_run",
        "input_batch",
    },
    "_multi_step_decode": {
        "num_reqs", "attn_metadata", "slot_mappings_by_layer", "num_tokens_across_dp", "step",
    },
    "_prefill": set[str](),
    "_generate_draft": set[str](),
}  # fmt: skip
"""Methods of a speculator that a `Draft` needs, and their local variables that it reads."""
FUSED = "use_fused_multi_step_decode", "supports_decode_metadata_update"
"""Attributes by which one graph makes all further tokens: of 0.28.0 to 0.31.0, and of later ones."""


class Key(NamedTuple):
    """What the graph of a draft is chosen by, and which of its tokens comes of this pass, from 1 on."""

    token: int
    cg_mode: Any
    desc: Any  # `BatchExecutionDescriptor`, or of pieces vLLM's `BatchDescriptor`

    @property
    def num_tokens(self) -> int:
        return int(self.desc.num_tokens)


def left_out(runner: Any) -> str:
    """Which drafts with graphs that this runner makes are not audited, and why; empty if all are."""
    speculator = getattr(runner, "speculator", None)
    if (why := _why_none(runner)) or not any(getattr(speculator, name, False) for name in FUSED):
        return why
    manager = getattr(speculator, "decode_cudagraph_manager", None)
    has_graphs = any(getattr(manager, "_capture_descs", {}).values())
    return "of drafts the first token alone is audited: one graph makes all others" if has_graphs else ""


def _why_none(runner: Any) -> str:
    """Why none of its drafts are audited, if there are any with graphs."""
    if hasattr(getattr(runner, "drafter", None), "cudagraph_dispatcher"):
        return f"drafts of {type(runner.drafter).__name__} are not audited: the V1 runner makes them"
    speculator = getattr(runner, "speculator", None)
    if speculator is None or not any(hasattr(one, "run_fullgraph") for one in vars(speculator).values()):
        return ""
    if lost := _lacks(type(speculator)):
        return f"drafts of {type(speculator).__name__} are not audited: it has no {lost}"
    if getattr(runner.vllm_config.parallel_config, "tensor_parallel_size", 1) > 1:
        return "drafts are not audited on tensor parallel ranks, which do not compare the keys of drafts"
    return ""


def _lacks(kind: type) -> str:
    """What a speculator of another kind, or of another release, has not; empty if it has all."""
    if lost := lacking(kind, READ):
        return lost
    for name in "_prefill", "_generate_draft":
        method = getattr(kind, name)
        try:
            inspect.signature(method).bind(None, 0, 0, None, None, **known(method, dict.fromkeys(_MORE)))
        except TypeError as error:
            return f"{name} that can be called so ({error})"
    return ""


_MORE = "num_tokens_across_dp", "cudagraph_runtime_mode", "mm_inputs", "num_speculative_steps"
"""Arguments of a pass beside requests, tokens, metadata and slots, where a release has them."""


def _audited(runner: Any) -> Any:
    """The speculator whose passes are audited, if there is one."""
    speculator = getattr(runner, "speculator", None)
    has_graphs = any(getattr(speculator, name, None) is not None for name in MANAGERS)
    return speculator if has_graphs and not _why_none(runner) else None


def anchors(runner: Any) -> list[Callable[..., Any]]:
    """What passes go through, captured, in pieces or eager."""
    if (one := _audited(runner)) is None:
        return []
    return [type(one)._prefill, type(one)._generate_draft, type(one.model).forward]


def watch(steps: Meeting) -> None:
    """Have each pass met of which the runner is about to replay a graph, if its drafts can be audited."""
    if (speculator := _audited(steps.runner)) is None:
        return
    for manager in filter(None, (getattr(speculator, name, None) for name in MANAGERS)):
        _watch_graph(steps, manager)
        _watch_pieces(steps, manager)


def _watch_graph(steps: Meeting, manager: Any) -> None:
    original = manager.run_fullgraph

    def replay(desc: Any) -> Any:
        frame = sys._getframe(1)
        if frame.f_code.co_name in READ and (told := _proposed(frame)):
            key = Key(frame.f_locals.get("step", 0) + 1, desc.cg_mode, desc)
            if not steps.skips(key):
                prepared = {"batch_desc": key, "frame": frame, "dummy_run": told["dummy_run"]}
                steps.meet(Draft, prepared, partial(original, desc))
        return original(desc)

    manager.run_fullgraph = replay


def _watch_pieces(steps: Meeting, manager: Any) -> None:
    original = manager.run_pw_graph

    def replay(model: Any, inputs: dict[str, Any]) -> Any:
        from vllm.config import CUDAGraphMode
        from vllm.forward_context import get_forward_context

        def forward() -> Any:
            is_eager = get_forward_context().cudagraph_runtime_mode == CUDAGraphMode.NONE
            return model(**inputs) if is_eager else original(model, inputs)

        context = get_forward_context()
        key = Key(1, context.cudagraph_runtime_mode, context.batch_descriptor)
        if (told := _proposed(sys._getframe(1))) and not steps.skips(key):
            prepared = {"batch_desc": key, "context": context, "dummy_run": told["dummy_run"]}
            steps.meet(Pieces, prepared | {"num_tokens": told["input_batch"].num_tokens}, forward)
        return original(model, inputs)

    manager.run_pw_graph = replay


def _proposed(frame: FrameType | None) -> dict[str, Any]:
    """The local variables of `propose`, in which a pass is made; none where it is made outside."""
    while frame is not None and frame.f_code.co_name != "propose":
        frame = frame.f_back
    return {} if frame is None else frame.f_locals


class Pieces(v1.Step):
    """The model of a first pass, replayed in pieces inside the forward context that the speculator has set.
    What makes a token of it runs eagerly."""

    def __init__(self, runner: Any, prepared: dict[str, Any], forward: Callable[[], Any]):
        super().__init__(runner, prepared | {"again": None}, forward)
        Repeated.__init__(self, runner.speculator.model)
        self.as_met = _apart(self.context.attn_metadata, {})

    def prepare(self) -> None:
        """Attention metadata as it is now: no pass of an audit has used it."""
        self.put_back()
        self.metadata = _apart(self.as_met, {})


class Draft(Repeated):
    """One pass that a speculator has prepared: its inputs lie in the buffers.

    Args:
        prepared: its key, and the frame in which it is replayed.
    """

    is_padded = True

    def __init__(self, runner: Any, prepared: dict[str, Any], replay: Callable[[], Any]):
        self.speculator = runner.speculator
        super().__init__(self.speculator.model)
        self.desc, self.replay = prepared["batch_desc"], replay
        frame: FrameType = prepared["frame"]
        self.locals = dict(frame.f_locals)
        # A lazy plan is made by the first pass that needs it: of the first token, mostly the target's own.
        self.as_met = _apart(self.locals["attn_metadata"], {})

    def prepare(self) -> None:
        """Attention metadata as it is now: no pass of an audit has used it."""
        self.put_back()
        self.metadata = _apart(self.as_met, {})

    def run(self) -> Any:
        """As the speculator does."""
        self.replay()
        return self._left()

    def eager(self) -> Any:
        """The same pass with no graph, of as many requests as the graph has, where vLLM takes the real ones:
        neither what rows of padding do to others nor a number of requests that froze can show."""
        from vllm.config import CUDAGraphMode

        held, speculator = self.locals, self.speculator
        num_reqs = self.desc.desc.num_reqs or min(self.desc.num_tokens, speculator.max_num_reqs)
        is_first = self.desc.token == 1
        make = speculator._prefill if is_first else speculator._generate_draft
        slots = held["slot_mappings" if is_first else "slot_mappings_by_layer"]
        more = {name: held.get(name) for name in _MORE} | {"cudagraph_runtime_mode": CUDAGraphMode.NONE}
        # As the graph has it. A step may want fewer, and then reads nothing of what its last pass moves on.
        more["num_speculative_steps"] = getattr(speculator, "num_speculative_steps", None)
        make(num_reqs, self.desc.num_tokens, self.metadata, slots, **known(make, more))
        return self._left()

    def _left(self) -> Any:
        """What is left of each request: its drafted tokens, and what the next pass reads."""
        one, rows = self.speculator, slice(self.locals["num_reqs"])
        buffers = one.input_buffers
        left = {"draft_tokens": one.draft_tokens, "hidden_states": one.hidden_states}
        left |= {name: getattr(buffers, name) for name in ("positions", "seq_lens", "input_ids")}
        if hasattr(one, "sample_src_positions"):  # from 0.29.0 on
            left["sample_src_positions"] = one.sample_src_positions
        return {name: memory[rows] for name, memory in left.items()}


def _apart(one: Any, made: dict[int, Any]) -> Any:
    """Copies of the dataclasses and containers in it, each once; all else is shared, tensors too."""
    if id(one) in made:
        return made[id(one)]
    if isinstance(one, dict):
        other: Any = {}
        made[id(one)] = other
        other.update({name: _apart(value, made) for name, value in one.items()})
    elif type(one) in (list, tuple):
        made[id(one)] = other = type(one)(_apart(value, made) for value in one)
    elif is_dataclass(one) and not isinstance(one, type) and hasattr(one, "__dict__"):
        made[id(one)] = other = copy(one)
        vars(other).update({name: _apart(value, made) for name, value in vars(one).items()})
    else:
        return one
    return other
