"""The exercise of `breakable_graph`: keep the host's lengths out of the graph."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from mrv2lab import prose
from mrv2lab.cases.exercises.base import Exercise, Observed
from mrv2lab.cases.exercises.watch import Watch
from mrv2lab.graphs import is_capturing
from mrv2lab.results import Run
from mrv2lab.runner.attention import Attention
from mrv2lab.runner.cudagraph_utils import CudaGraphManager
from mrv2lab.runner.forward_context import AttentionMetadata, get_forward_context
from mrv2lab.runner.model import Decoder


class PwModelWatch(Watch):
    """Notes how PIECEWISE batches are run, and each time attention attends."""

    def __init__(self, fn: Callable[..., Any]):
        super().__init__(fn)
        self.num_layers = 0  # of the model
        self.num_sizes = 0  # how many sizes the manager would capture
        self.dummy_len = 0  # `max_seq_len` of the batch that was captured
        self.needed = 0  # the longest `max_seq_len` of a PIECEWISE batch
        self.replaced: list[int] = []  # layers whose `attn.op` is another one now
        self.asked: bool | None = None  # whether the manager was asked for breakable graphs
        self.frozen: dict[int, int] = {}  # by layer, the lengths that attention attended to inside a graph
        self.returned: set[str] = set()  # what an op returned, by name of its type
        self.unwritten: set[int] = set()  # layers that attended, and left another result in `output`
        self._attended: dict[int, torch.Tensor] = {}

    @contextmanager
    def watching(self, *args: Any) -> Iterator[tuple[Any, ...]]:
        model: Decoder = args[0]
        self._ops = [model.layer(i).attn.op for i in range(len(model.layers))]
        yield args

    def left(self, result: Any, *args: Any) -> str | None:
        if not callable(result):
            return "return what PIECEWISE batches call: the model, or what stands for it"
        model: Decoder = args[0]
        manager: CudaGraphManager = args[1]
        if self.asked is not None:  # the second runner of a check only measures
            return None
        self.asked, self.num_sizes = manager.use_breakable_cg, len(manager.capture_descs)
        self.num_layers = len(model.layers)
        for index in range(self.num_layers):
            attn = model.layer(index).attn
            if attn.op is not self._ops[index]:
                self.replaced.append(index)
            self._watch_attention(index, attn)
        run_pw_graph = manager.run_pw_graph

        def noted(model: Callable[..., Any], model_inputs: dict[str, Any]) -> Any:
            self.needed = max(self.needed, get_forward_context().max_seq_len)
            return run_pw_graph(model, model_inputs)

        manager.run_pw_graph = noted  # type: ignore[method-assign]
        return None

    def _watch_attention(self, index: int, attn: Attention) -> None:
        attend, op = attn.attend, attn.op

        def noted_attend(q: Any, k: Any, v: Any, meta: AttentionMetadata) -> torch.Tensor:
            result = attend(q, k, v, meta)
            if is_capturing():
                self.frozen[index] = meta.max_seq_len
            else:
                self._attended[index] = result
            return result

        def noted_op(query: Any, key: Any, value: Any, output: torch.Tensor, layer: Attention) -> Any:
            self._attended.pop(index, None)
            captures = is_capturing()
            if captures:
                self.dummy_len = get_forward_context().max_seq_len
            result = op(query, key, value, output, layer)
            if result is not None:
                self.returned.add(type(result).__name__)
            attended = self._attended.pop(index, None)
            if not captures and attended is not None and not torch.equal(attended, output):
                self.unwritten.add(index)
            return result

        attn.attend, attn.op = noted_attend, noted_op  # type: ignore[method-assign]


def mistakes(run: Run, watch: PwModelWatch) -> Observed:
    trouble, is_eager = watch.trouble, run.verdict == "eager" and watch.asked is not None
    if trouble and trouble.error == "BreakError" and " returned a " in trouble.message:
        yield "returns_its_result", {"what": "Where the capture broke, something was returned."}
    if watch.returned and watch.unwritten:
        returned = f"The op returned a {min(watch.returned)}"
        yield "returns_its_result", {"what": f"{returned}, and what attention computed was not in output."}
    if watch.unwritten:
        yield "output_not_written", {"layers": _layers(watch.unwritten)}
    if is_eager and not watch.asked and watch.replaced:
        yield "breaks_without_a_capture", {"layers": _layers(watch.replaced)}
    if is_eager and not watch.num_sizes:
        yield "no_sizes", {}
    if is_eager and not watch.asked:
        yield "nobody_captures", {}
    yield from captured_too_short(watch)


def captured_too_short(watch: PwModelWatch) -> Observed:
    """Attention was captured at a length that a batch went beyond."""
    short = {layer: length for layer, length in watch.frozen.items() if length < watch.needed}
    if not short:
        return
    lengths = " or ".join(map(str, sorted(set(short.values()))))
    said: dict[str, object] = {"lengths": lengths, "layers": _layers(short), "watch": watch}
    if len(short) < watch.num_layers:
        yield "some_layers_captured", said
    if max(short.values()) > watch.dummy_len:
        yield "own_length_too_short", said
    yield "whole_model_captured", said


def _layers(layers: Iterable[int]) -> str:
    listed = sorted(layers)
    return f"layer{'s' if len(listed) > 1 else ''} {', '.join(map(str, listed))}"


EXERCISE = Exercise(**prose.beside(__file__), watch=PwModelWatch, mistakes=mistakes)
