"""What graphs do of an engine's work, and what is launched beside them, step by step.

CUPTI, which torch's profiler reads, is told of every launch of this process, whoever asks for it: torch,
Triton, compiled code, C++. So nothing needs to be known of how the engine runs its model.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
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

    A speculator is judged where it drafts one token: of further ones vLLM captures other sizes, or none.

    Args:
        runner: the `GPUModelRunner`.
        on_replay: given a function, calls it with the number of nodes of every graph that is replayed.
        mode, sizes: of graphs, as the engine was asked for them; vLLM may lower the mode.
    """

    runner: Any
    on_replay: Callable[[Callable[[int], None]], Any]
    mode: str
    sizes: Sequence[int]
    steps: list[CountedStep] = field(default_factory=list)

    def __enter__(self) -> "Meter":
        runner, speculator = self.runner, getattr(self.runner, "speculator", None)
        self._fits: list[bool] = []
        self._nodes: list[dict[str, int]] = []
        self._model = "target"
        with ExitStack() as stack:
            stack.enter_context(patch.object(runner, "execute_model", self._step(runner.execute_model)))
            stack.enter_context(_marked(runner.model, "forward", "target"))
            if speculator is not None and runner.num_speculative_steps == 1:
                stack.enter_context(_marked(speculator.model, "forward", "speculator"))
                stack.enter_context(patch.object(speculator, "propose", self._draft(speculator.propose)))
            for capture in _breakable_captures(runner):
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
            works = count(spans, self._nodes, {*splitting_ops(), f"{_MARK}split"})
            self.steps = [CountedStep(*pair) for pair in zip(works, self._fits, strict=True)]

    def _step(self, execute_model: Callable[..., Any]) -> Callable[..., Any]:
        query_len = 1 + self.runner.num_speculative_steps

        def noted(scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
            num_tokens = scheduler_output.total_num_scheduled_tokens
            if not num_tokens:  # requests are let go of, and nothing is run
                return execute_model(scheduler_output, *args, **kwargs)
            is_decode = set(scheduler_output.num_scheduled_tokens.values()) == {query_len}
            self._fits.append(fits_a_graph(self.mode, self.sizes, num_tokens, is_decode=is_decode))
            self._nodes.append({})
            with record_function(f"{_MARK}step"):
                return execute_model(scheduler_output, *args, **kwargs)

        return noted

    def _draft(self, propose: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*args: Any, **kwargs: Any) -> Any:
            self._model = "speculator"
            try:
                return propose(*args, **kwargs)
            finally:
                self._model = "target"

        return noted

    def _replayed(self, num_nodes: int) -> None:
        if self._nodes:
            nodes = self._nodes[-1]
            nodes[self._model] = nodes.get(self._model, 0) + num_nodes


@contextmanager
def _marked(owner: Any, name: str, mark: str) -> Iterator[None]:
    with patch.object(owner, name, _noted(getattr(owner, name), mark)):
        yield


def _noted(original: Callable[..., Any], mark: str) -> Callable[..., Any]:
    def noted(*args: Any, **kwargs: Any) -> Any:
        with record_function(_MARK + mark):
            return original(*args, **kwargs)

    return noted


def _breakable_captures(runner: Any) -> list[Any]:
    """What runs a model in segments, some of them broken out of its capture."""
    breakable = getattr(runner.cudagraph_manager, "breakable_cg_runner", None)
    entries = breakable.entries.values() if breakable is not None else ()
    return [entry.capture for entry in entries if entry.capture is not None]


def _is_replay(segment: Callable[..., Any]) -> bool:
    return isinstance(getattr(segment, "__self__", None), torch.cuda.CUDAGraph)


def splitting_ops() -> set[str]:
    """The ops at which vLLM's piecewise graphs split a model."""
    from vllm.config.compilation import CompilationConfig

    cache = {"vllm::unified_kv_cache_update", "vllm::unified_mla_kv_cache_update"}
    return {*CompilationConfig._attention_ops, *cache}


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
