"""What graphs do of an engine's work, and what is launched beside them, step by step.

CUPTI, which torch's profiler reads, is told of every launch of this process, whoever asks for it: torch,
Triton, compiled code, C++. So nothing needs to be known of how the engine runs its model.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from inspect import signature
from itertools import accumulate
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from mrv2lab.graphs.work import Amount, fits_a_graph

LAUNCHES = ("cudaLaunchKernel", "cuLaunchKernel", "cudaLaunchCooperativeKernel", "cuLaunchCooperativeKernel")
_MARK = "mrv2lab."


class Span(NamedTuple):
    """An event of a profile: its name, and when it began and ended, in ns."""

    name: str
    start: int
    end: int


@dataclass(frozen=True)
class CountedStep:
    """What was done in one step; as `verdict.RanStep`, and whether its batch fits a size with graphs."""

    work: dict[str, Amount]
    fits: bool


@dataclass
class Meter:
    """Counts while it is entered. Its `steps` are there when it has been left.

    A speculator is judged where it drafts one token: further ones have other sizes, or no graphs. Nor are
    models judged of which vLLM is told to break out more than attention by a decorator, as DeepSeek-V4, or
    ranks that run eagerly because another one must (data parallel).

    Args:
        on_replay: given a function, calls it with the number of nodes of every graph that is replayed.
        mode, sizes: of graphs, as the engine was asked for them.
    """

    runner: Any  # the `GPUModelRunner`
    on_replay: Callable[[Callable[[int], None]], Any]
    mode: str
    sizes: Sequence[int]
    steps: list[CountedStep] = field(default_factory=list)

    def __enter__(self) -> "Meter":
        runner, speculator = self.runner, getattr(self.runner, "speculator", None)
        self._fits: list[bool] = []
        self._nodes: list[dict[str, int]] = []
        self._model = "target"  # of whose graphs one is replayed now; empty if nobody's who is judged
        managers = [runner.cudagraph_manager]
        with ExitStack() as stack:
            stack.enter_context(patch.object(runner, "execute_model", self._step(runner.execute_model)))
            stack.enter_context(_calls_marked(runner.model, "target"))
            if speculator is not None:
                stack.enter_context(patch.object(speculator, "propose", self._draft(speculator.propose)))
                managers.append(getattr(speculator, "prefill_cudagraph_manager", None))
            if speculator is not None and runner.num_speculative_steps == 1:
                stack.enter_context(_calls_marked(speculator.model, "speculator"))
            for capture in _breakable_captures(managers):
                segments = [seg if _is_replay(seg) else _noted(seg, "split") for seg in capture.segments]
                stack.enter_context(patch.object(capture, "segments", segments))
            stack.enter_context(self.on_replay(self._replayed))
            activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
            self._profile = stack.enter_context(profile(activities=activities, acc_events=True))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exception: Any) -> None:
        self._stack.close()
        if exception[0] is None:
            events = self._profile.profiler.kineto_results.events()
            # A mark has a twin on the GPU's own time line.
            spans = [
                Span(e.name(), e.start_ns(), e.start_ns() + e.duration_ns())
                for e in events
                if e.device_type().name == "CPU"
            ]
            works = count(spans, self._nodes, {*splitting_ops(self.runner), f"{_MARK}split"})
            self.steps = [CountedStep(*pair) for pair in zip(works, self._fits, strict=True)]

    def _step(self, execute_model: Callable[..., Any]) -> Callable[..., Any]:
        def noted(scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
            num_tokens = list(scheduler_output.num_scheduled_tokens.values())
            if not num_tokens:  # requests are let go of, and nothing is run
                return execute_model(scheduler_output, *args, **kwargs)
            self._fits.append(is_to_have_graphs(self.runner, self.mode, self.sizes, num_tokens))
            self._nodes.append({})
            with record_function(f"{_MARK}step"):
                return execute_model(scheduler_output, *args, **kwargs)

        return noted

    def _draft(self, propose: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*args: Any, **kwargs: Any) -> Any:
            self._model = "speculator" if self.runner.num_speculative_steps == 1 else ""
            try:
                return propose(*args, **kwargs)
            finally:
                self._model = "target"

        return noted

    def _replayed(self, num_nodes: int) -> None:
        if self._nodes and self._model:
            nodes = self._nodes[-1]
            nodes[self._model] = nodes.get(self._model, 0) + num_nodes


def is_to_have_graphs(runner: Any, mode: str, sizes: Sequence[int], num_tokens: Sequence[int]) -> bool:
    """Whether vLLM means to have graphs for a batch, whatever it has captured since.

    Of what it was asked for vLLM makes less by rule: decodes of no more requests than it serves at once,
    sizes that drafts divide, a mode that the attention backend supports. Where nothing at all is left of
    what was asked for, what was asked for counts.

    Args:
        num_tokens: of each request.
    """
    manager, total, longest = runner.cudagraph_manager, sum(num_tokens), max(num_tokens)
    if not manager._candidates:
        is_decode = set(num_tokens) == {1 + runner.num_speculative_steps}
        return fits_a_graph(mode, sizes, total, is_decode=is_decode)
    uniform = longest if total == longest * len(num_tokens) else None
    # Later releases also ask for the number of adapters; whatever it is, the sizes are the same.
    lora = {"num_active_loras": 0} if "num_active_loras" in signature(manager.dispatch).parameters else {}
    with patch.object(manager, "_graphs_captured", True):
        found = manager.dispatch(len(num_tokens), total, uniform, **lora)
    return bool(found.cg_mode.name != "NONE")


@contextmanager
def _calls_marked(model: Any, mark: str) -> Iterator[None]:
    """Mark each call of a model. Not of its `forward`: a compiled model goes by it."""
    call = type(model).__call__

    def marked(self: Any, *args: Any, **kwargs: Any) -> Any:
        with record_function(_MARK + mark) if self is model else nullcontext():
            return call(self, *args, **kwargs)

    with patch.object(type(model), "__call__", marked):
        yield


def _noted(original: Callable[..., Any], mark: str) -> Callable[..., Any]:
    def noted(*args: Any, **kwargs: Any) -> Any:
        with record_function(_MARK + mark):
            return original(*args, **kwargs)

    return noted


def _breakable_captures(managers: Iterable[Any]) -> list[Any]:
    """What runs a model in segments, some of them broken out of its capture."""
    runners = [getattr(manager, "breakable_cg_runner", None) for manager in managers]
    entries = [entry for runner in runners if runner is not None for entry in runner.entries.values()]
    return [entry.capture for entry in entries if entry.capture is not None]


def _is_replay(segment: Callable[..., Any]) -> bool:
    return isinstance(getattr(segment, "__self__", None), torch.cuda.CUDAGraph)


def splitting_ops(runner: Any) -> set[str]:
    """The ops at which vLLM's piecewise graphs split a model, the user's own among them."""
    from vllm.config.compilation import CompilationConfig

    cache = {"vllm::unified_kv_cache_update", "vllm::unified_mla_kv_cache_update"}
    asked = runner.vllm_config.compilation_config.splitting_ops or ()
    return {*CompilationConfig._attention_ops, *cache, *asked}


def count(spans: Sequence[Span], nodes: list[dict[str, int]], splitting: set[str]) -> list[dict[str, Amount]]:
    """What was done for each model in each step, from a profile.

    Args:
        spans: all events; marks among them say where a step begins and where a model runs.
        nodes: replayed, by step and model.
        splitting: names of ops that piecewise graphs leave out.
    """
    starts = sorted(span.start for span in spans if span.name == f"{_MARK}step")
    splits = _Cover(span for span in spans if span.name in splitting)
    marks = {span.name.removeprefix(_MARK) for span in spans if span.name.startswith(_MARK)}
    models = sorted(marks - {"step", "split"})
    covers = {model: _Cover(span for span in spans if span.name == _MARK + model) for model in models}
    launched: list[list[Span]] = [[] for _ in nodes]
    for span in spans:
        if span.name.startswith(LAUNCHES) and (step := bisect_right(starts, span.start)):
            launched[step - 1].append(span)
    return [
        {"step": Amount(0, len(launches), sum(launch in splits for launch in launches))}
        | {
            model: _amount(replayed.get(model, 0), launches, covers.get(model), splits)
            for model in {*models, *replayed}
        }
        for replayed, launches in zip(nodes, launched, strict=True)
    ]


def _amount(nodes: int, launches: list[Span], cover: "_Cover | None", splits: "_Cover") -> Amount:
    inside = [launch for launch in launches if cover is not None and launch in cover]
    return Amount(nodes, len(inside), sum(launch in splits for launch in inside))


class _Cover:
    """Spans, which may lie inside each other; tells whether something began in one of them."""

    def __init__(self, spans: Iterable[Span]):
        ordered = sorted(spans, key=lambda span: span.start)
        self.starts = [span.start for span in ordered]
        self.ends = list(accumulate((span.end for span in ordered), max))

    def __contains__(self, launch: Span) -> bool:
        index = bisect_right(self.starts, launch.start) - 1
        return index >= 0 and launch.start < self.ends[index]
