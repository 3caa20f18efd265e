"""Graphs of an encoder of images, as audits meet them (`compilation_config.cudagraph_mm_encoder`).

A manager (`v1/worker/encoder_cudagraph.py`, read in vLLM 0.23.0 to 0.33.0) has one graph for each budget of
tokens. It copies the pixels of some items, images or frames, and what it has made of their sizes into the
buffers of the smallest graph that they fit in, and replays. The V1 runner makes such a manager while it
captures, and from 0.28.0 on V2's has one too (0.27.0 was not read).

A few have graphs of two paths (DeepSeek-OCR from 0.24.0, Step3-VL from 0.25.1) or of an axis (MiniCPM-V from
0.31.0, Gemma 4 in 0.33.0). In others the graph ends before a resampler or an assembly, and its rows are
patches or tiles, which `_get_per_item_out_tokens` does not count (`postprocess_encoder_output`: Step3-VL in
0.23.0 and 0.24.0, Ernie 4.5 VL from 0.28.0, DeepSeek V4.1 from 0.31.0, DeepSeek-VL2 in 0.33.0).
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import patch

from mrv2lab.live.v2 import Meeting, Repeated, lacking, model_of

READ = {
    "_run_budget_graph": {"mm_kwargs", "token_budget", "graph_meta"},
    "_get_per_item_out_tokens": set[str](),
}
"""Methods of a manager that an `Encoding` needs, and their local variables."""
_GRAPH = {"graph", "input_buffers", "output_buffer"}  # attributes of what a manager keeps for each
FORWARD, LATER = "encoder_cudagraph_forward", "postprocess_encoder_output"
"""Methods of a model: what is captured, and what may make rows of items out of the rows of a graph."""
_PROTOCOL = "SupportsEncoderCudaGraph"


class Key(NamedTuple):
    """What the graph of an encoder is chosen by."""

    num_tokens: int  # the budget: of items, behind the encoder
    cg_mode: Any


def _manager(runner: Any) -> Any:
    """What replays the graphs of its encoder; None if there is none."""
    runners = (runner, getattr(getattr(runner, "model_state", None), "encoder_runner", None))
    names = "encoder_cudagraph_manager", "cudagraph_manager"
    found = (getattr(one, name, None) for one, name in zip(runners, names, strict=True))
    return next((one for one in found if one is not None), None)


def _lacks(manager: Any) -> str:
    """What that of another release has not; empty if it has all."""
    if lost := lacking(type(manager), READ):
        return lost
    lost_of = (_GRAPH - vars(meta).keys() for meta in _graphs(manager.budget_graphs))
    return ", ".join(sorted(set[str]().union(*lost_of)))


def _graphs(held: Any) -> Iterator[Any]:
    """What a manager keeps of each of its graphs; from 0.24.0 on they lie in a dictionary for each path."""
    for one in held.values():
        yield from _graphs(one) if isinstance(one, dict) else (one,)


def _is_parted(held: dict[Any, Any]) -> bool:
    """Whether its graphs are those of several paths, or of a budget and something else."""
    paths = [one for one in held.values() if isinstance(one, dict)]
    return len(paths) > 1 or any(isinstance(key, tuple) for path in paths or [held] for key in path)


def are_captured(runner: Any) -> bool:
    """Whether its encoder has any graph: V2 captures them in whatever mode the model is captured in."""
    manager = _manager(runner)
    return manager is not None and any(True for _ in _graphs(manager.budget_graphs))


def left_out(runner: Any) -> str:
    """Which graphs of its encoder are not audited, and why; empty if all are."""
    manager = _manager(runner)
    asked = getattr(runner.vllm_config, "compilation_config", None)
    if manager is None and getattr(asked, "cudagraph_mm_encoder", False):
        return "cudagraph_mm_encoder does nothing here: this runner makes no graphs of an encoder"
    if manager is None or not are_captured(runner):
        return ""
    why, kind = "", type(manager.model)
    if lost := _lacks(manager):
        why = f": {type(manager).__name__} has no {lost}"
    elif getattr(runner.vllm_config.parallel_config, "tensor_parallel_size", 1) > 1:
        why = " on tensor parallel ranks"
    elif _is_parted(manager.budget_graphs):
        why = f": those of {kind.__name__} are of several paths or axes"
    elif any(LATER in vars(one) for one in kind.__mro__ if one.__name__ != _PROTOCOL):
        why = f": their rows are none of items yet, {kind.__name__} makes those of them ({LATER})"
    return why and f"graphs of the encoder are not audited{why}"


def anchors(runner: Any) -> list[Callable[..., Any]]:
    """What an encoder goes through, captured or eager. V1 has no manager before it captures."""
    forward = getattr(type(model_of(runner)), FORWARD, None)
    return [] if forward is None else [forward]


def watch(steps: Meeting) -> None:
    """Have each batch of items met of which the runner is about to replay a graph."""
    manager = _manager(steps.runner)
    if manager is None or left_out(steps.runner):
        return
    original = manager._run_budget_graph

    def replay(mm_kwargs: dict[str, Any], token_budget: int, **more: Any) -> Any:
        from vllm.config import CUDAGraphMode

        key, run = Key(token_budget, CUDAGraphMode.FULL), partial(original, mm_kwargs, token_budget, **more)
        if not steps.skips(key):
            steps.meet(Encoding, {"batch_desc": key, "manager": manager, "mm_kwargs": mm_kwargs}, run)
        return run()

    manager._run_budget_graph = replay


class Encoding(Repeated):
    """Some items that are about to be encoded: the buffers of their graph are filled anew for each pass.

    Args:
        prepared: the key, the manager, and the items.
        replay: the call of `_run_budget_graph`.
    """

    is_padded = True

    def __init__(self, runner: Any, prepared: dict[str, Any], replay: Callable[[], Any]):
        manager = prepared["manager"]
        super().__init__(manager.model)
        self._held.append((vars(manager), dict(vars(manager))))  # it counts its replays
        self.desc, self.manager, self.fill = prepared["batch_desc"], manager, replay
        self.num_rows = sum(manager._get_per_item_out_tokens(prepared["mm_kwargs"]))

    def prepare(self) -> None:
        """What the manager does before it replays."""
        self.put_back()
        chosen: list[Any] = []
        with ExitStack() as stack:
            for held in _graphs(self.manager.budget_graphs):
                instead = SimpleNamespace(replay=partial(chosen.append, held))
                stack.enter_context(patch.object(held, "graph", instead))
            self.fill()
        (self.chosen,) = chosen

    def run(self) -> Any:
        """As the manager does."""
        self.chosen.graph.replay()
        return self._rows()

    def eager(self) -> Any:
        """What was captured, with no graph."""
        values = {**self.chosen.input_buffers}  # a model takes out of it what it uses
        self.chosen.output_buffer.copy_(self.manager.model.encoder_cudagraph_forward(values))
        return self._rows()

    def _rows(self) -> Any:
        """Those of items; behind them lies what padding has come to."""
        return self.chosen.output_buffer[: self.num_rows]
