"""Drafts of Model Runner V2 that a model of their own makes, as audits meet them: Eagle, MTP.

The first token of each draft comes of a pass over the tokens of the step, with the attention metadata that
the target model has had, and each later one of a pass over one token a request
(`v1/worker/gpu/spec_decode/autoregressive/speculator.py` of vLLM 0.23.0 to 0.28.0, later
`target_dependent_ar/`). Each of the two passes has a manager of graphs of its own.
"""

import inspect
import sys
from collections.abc import Callable
from copy import copy
from dataclasses import is_dataclass
from functools import partial
from types import FrameType
from typing import Any, NamedTuple

from mrv2lab.errors import AuditError
from mrv2lab.live import v1
from mrv2lab.live.v2 import Meeting, Repeated

MANAGERS = {
    "prefill_cudagraph_manager": "first drafted token",
    "decode_cudagraph_manager": "later drafted tokens",
}
READ = {
    "propose": {
        "num_reqs", "attn_metadata", "slot_mappings", "num_tokens_across_dp", "mm_inputs", "dummy_run",
        "input_batch",
    },
    "_multi_step_decode": {"num_reqs", "attn_metadata", "slot_mappings_by_layer", "num_tokens_across_dp"},
    "_prefill": set[str](),
    "_generate_draft": set[str](),
}  # fmt: skip
"""Methods of a speculator that a `Draft` needs, and their local variables that it reads."""


class Key(NamedTuple):
    """What the graph of a draft is chosen by."""

    pass_: str
    cg_mode: Any
    desc: Any  # `BatchExecutionDescriptor`, or of pieces vLLM's `BatchDescriptor`

    @property
    def num_tokens(self) -> int:
        return int(self.desc.num_tokens)


def left_out(runner: Any) -> str:
    """Why drafts that this runner makes are not audited; empty if they are, or if there are none."""
    if hasattr(getattr(runner, "drafter", None), "cudagraph_dispatcher"):
        return f"drafts of {type(runner.drafter).__name__} are not audited: the V1 runner makes them"
    speculator = getattr(runner, "speculator", None)
    if speculator is None or not any(hasattr(one, "run_fullgraph") for one in vars(speculator).values()):
        return ""
    kind = type(speculator)
    told = f"drafts of {kind.__name__} are not audited: it has no "
    for name, read in READ.items():
        if (method := getattr(kind, name, None)) is None:
            return told + name
        code = inspect.unwrap(method).__code__  # it is decorated
        if lost := sorted(read - {*code.co_varnames, *code.co_cellvars}):
            return told + f"{', '.join(lost)} in {name}"
    return ""


def anchors(runner: Any) -> list[Callable[..., Any]]:
    """What passes go through, captured, in pieces or eager."""
    kind: Any = type(getattr(runner, "speculator", None))
    if left_out(runner) or not hasattr(kind, "_prefill"):
        return []
    return [kind._prefill, kind._generate_draft, type(runner.speculator.model).forward]


def watch(steps: Meeting) -> None:
    """Have each pass met of which the runner is about to replay a graph, if its drafts can be audited."""
    speculator = getattr(steps.runner, "speculator", None)
    if speculator is None or left_out(steps.runner):
        return
    for name, pass_ in MANAGERS.items():
        if (manager := getattr(speculator, name, None)) is not None:
            _watch_graph(steps, manager, pass_)
            _watch_pieces(steps, manager, pass_)


def _watch_graph(steps: Meeting, manager: Any, pass_: str) -> None:
    original = manager.run_fullgraph

    def replay(desc: Any) -> Any:
        frame, key = sys._getframe(1), Key(pass_, desc.cg_mode, desc)
        if frame.f_code.co_name in READ and not steps.skips(key):
            prepared = {"batch_desc": key, "frame": frame, "dummy_run": _proposed(frame)["dummy_run"]}
            steps.meet(Draft, prepared, partial(original, desc))
        return original(desc)

    manager.run_fullgraph = replay


def _watch_pieces(steps: Meeting, manager: Any, pass_: str) -> None:
    original = manager.run_pw_graph

    def replay(model: Any, inputs: dict[str, Any]) -> Any:
        from vllm.config import CUDAGraphMode
        from vllm.forward_context import get_forward_context

        def forward() -> Any:
            is_eager = get_forward_context().cudagraph_runtime_mode == CUDAGraphMode.NONE
            return model(**inputs) if is_eager else original(model, inputs)

        context = get_forward_context()
        key = Key(pass_, context.cudagraph_runtime_mode, context.batch_descriptor)
        if not steps.skips(key):
            told = _proposed(sys._getframe(1))
            prepared = {"batch_desc": key, "context": context, "dummy_run": told["dummy_run"]}
            steps.meet(Pieces, prepared | {"num_tokens": told["input_batch"].num_tokens}, forward)
        return original(model, inputs)

    manager.run_pw_graph = replay


def _proposed(frame: FrameType | None) -> dict[str, Any]:
    """The local variables of `propose`, in which a pass is made."""
    while frame is not None and frame.f_code.co_name != "propose":
        frame = frame.f_back
    if frame is None:
        raise AuditError("a draft is made outside of propose")
    return frame.f_locals


class Pieces(v1.Step):
    """A pass that is replayed in pieces, inside the forward context that the speculator has set."""

    def __init__(self, runner: Any, prepared: dict[str, Any], forward: Callable[[], Any]):
        super().__init__(runner, prepared | {"again": None}, forward)
        Repeated.__init__(self, runner.speculator.model)
        self.unused = _apart(self.context.attn_metadata, {})

    def prepare(self) -> None:
        """Attention metadata that nobody has used."""
        self.put_back()
        self.metadata = _apart(self.unused, {})


class Draft(Repeated):
    """One pass that a speculator has prepared: its inputs lie in the buffers.

    Args:
        prepared: its key, and the frame in which it is replayed.
    """

    def __init__(self, runner: Any, prepared: dict[str, Any], replay: Callable[[], Any]):
        self.speculator = runner.speculator
        super().__init__(self.speculator.model)
        self.desc, self.replay = prepared["batch_desc"], replay
        frame: FrameType = prepared["frame"]
        self.locals = dict(frame.f_locals)
        self.is_first = frame.f_code.co_name == "propose"
        # What nobody has used yet: a plan may be made by the first pass that needs it.
        self.unused = _apart(self.locals["attn_metadata"], {})

    def prepare(self) -> None:
        """Attention metadata that nobody has used."""
        self.put_back()
        self.metadata = _apart(self.unused, {})

    def run(self) -> Any:
        """As the speculator does."""
        self.replay()
        return self._left()

    def eager(self) -> Any:
        """The same pass with no graph, of as many requests as the graph has. Some may be padding, whose rows
        nobody reads."""
        held, speculator = self.locals, self.speculator
        num_reqs = self.desc.desc.num_reqs or min(self.desc.num_tokens, speculator.max_num_reqs)
        more = {"num_tokens_across_dp": held["num_tokens_across_dp"]}
        if self.is_first:
            make, slots = speculator._prefill, held["slot_mappings"]
            more["mm_inputs"] = held["mm_inputs"]
        else:
            make, slots = speculator._generate_draft, held["slot_mappings_by_layer"]
        make(num_reqs, self.desc.num_tokens, self.metadata, slots, **more)
        return self._left()

    def _left(self) -> Any:
        """What is left of each request: its drafted tokens, and what the next pass reads."""
        one, rows = self.speculator, slice(self.locals["num_reqs"])
        buffers = one.input_buffers
        names = "draft_tokens", "hidden_states", "positions", "seq_lens", "input_ids"
        left = one.draft_tokens, one.hidden_states, buffers.positions, buffers.seq_lens, buffers.input_ids
        return {name: memory[rows] for name, memory in zip(names, left, strict=True)}


def _apart(one: Any, known: dict[int, Any]) -> Any:
    """Copies of the dataclasses and containers in it, each once; all else is shared, tensors too."""
    if id(one) in known:
        return known[id(one)]
    if isinstance(one, dict):
        made: Any = {name: _apart(value, known) for name, value in one.items()}
    elif type(one) in (list, tuple):
        made = type(one)(_apart(value, known) for value in one)
    elif is_dataclass(one) and not isinstance(one, type):
        made = copy(one)
        vars(made).update({name: _apart(value, known) for name, value in vars(one).items()})
    else:
        return one
    known[id(one)] = made
    return made
