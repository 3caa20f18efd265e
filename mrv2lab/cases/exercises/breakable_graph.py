"""The exercise of `breakable_graph`: keep the host's lengths out of the graph."""

from collections.abc import Callable, Iterator
from typing import Any

import torch

from mrv2lab import prose
from mrv2lab.cases.exercises.base import Evidence, Exercise
from mrv2lab.cases.exercises.watch import Watch
from mrv2lab.graphs import is_capturing
from mrv2lab.runner.attention import Attention
from mrv2lab.runner.cudagraph_utils import CudaGraphManager
from mrv2lab.runner.forward_context import AttentionMetadata, get_forward_context
from mrv2lab.runner.model import Decoder


class PwModelWatch(Watch):
    """Notes how PIECEWISE batches are run, and each time attention attends.

    Attributes:
        num_layers: of the model.
        replaced: layers whose `attn.op` is another one now.
        asked: whether the manager was asked for breakable graphs.
        num_sizes: how many sizes it would capture.
        frozen: by layer, the lengths that attention attended to inside a graph.
        dummy_len: `max_seq_len` of the batch that was captured.
        needed: the longest `max_seq_len` of a PIECEWISE batch.
        returned: what an op returned, by name of its type.
        unwritten: layers that attended, and left another result in `output`.
    """

    def __init__(self, fn: Callable[..., Any]):
        super().__init__(fn)
        self.num_layers = self.num_sizes = self.dummy_len = self.needed = 0
        self.replaced: list[int] = []
        self.asked: bool | None = None
        self.frozen: dict[int, int] = {}
        self.returned: set[str] = set()
        self.unwritten: set[int] = set()
        self._attended: dict[int, torch.Tensor] = {}

    def given(self, *args: Any) -> tuple[Any, ...]:
        model: Decoder = args[0]
        self._ops = [model.layer(i).attn.op for i in range(len(model.layers))]
        return args

    def complaint(self, result: Any) -> str | None:
        return (
            None
            if callable(result)
            else "return what PIECEWISE batches call: the model, or what stands for it"
        )

    def left(self, result: Any, *args: Any) -> None:
        model: Decoder = args[0]
        manager: CudaGraphManager = args[1]
        if self.asked is not None:  # the second runner of a check only measures
            return
        self.asked, self.num_sizes = manager.use_breakable_cg, len(manager.capture_descs)
        self.num_layers = len(model.layers)
        for index in range(self.num_layers):
            attn = model.layer(index).attn
            if attn.op is not self._ops[index]:
                self.replaced.append(index)
            self._watch_attention(index, attn)
        self._watch_batches(manager)

    def _watch_attention(self, index: int, attn: Attention) -> None:
        attend, op = attn.attend, attn.op

        def noted_attend(
            q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, meta: AttentionMetadata
        ) -> torch.Tensor:
            result = attend(q, k, v, meta)
            if is_capturing():
                self.frozen[index] = meta.max_seq_len
            else:
                self._attended[index] = result
            return result

        def noted_op(
            query: torch.Tensor,
            key: torch.Tensor,
            value: torch.Tensor,
            output: torch.Tensor,
            layer: Attention,
        ) -> Any:
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

    def _watch_batches(self, manager: CudaGraphManager) -> None:
        run_pw_graph = manager.run_pw_graph

        def noted(model: Callable[..., Any], model_inputs: dict[str, Any]) -> Any:
            self.needed = max(self.needed, get_forward_context().max_seq_len)
            return run_pw_graph(model, model_inputs)

        manager.run_pw_graph = noted  # type: ignore[method-assign]


def returns_its_result(evidence: Evidence) -> Iterator[str]:
    trouble, watch = evidence.trouble, evidence.watch
    if trouble and trouble.error == "BreakError" and " returned a " in trouble.message:
        yield "Where the capture broke, something was returned."
    if watch.returned and watch.unwritten:
        yield f"The op returned a {min(watch.returned)}, and what attention computed was not in output."


def output_not_written(evidence: Evidence) -> Iterator[str]:
    if layers := evidence.watch.unwritten:
        yield f"In {_layers(layers)} what attention computed was not in output when the op was done."


def breaks_without_a_capture(evidence: Evidence) -> Iterator[str]:
    for seen in nobody_captures(evidence):
        if layers := evidence.watch.replaced:
            yield f"The op of {_layers(layers)} is a new one, {seen}"


def no_sizes(evidence: Evidence) -> Iterator[str]:
    watch = evidence.watch
    if evidence.run.verdict == "eager" and watch.asked is not None and not watch.num_sizes:
        yield "The manager has no size left to capture, and no graph ran."


def nobody_captures(evidence: Evidence) -> Iterator[str]:
    if evidence.run.verdict == "eager" and evidence.watch.asked is False:
        yield "manager.use_breakable_cg is False, and no graph ran."


def too_short(watch: PwModelWatch) -> dict[int, int]:
    """Layers whose attention was captured at a length that a batch went beyond."""
    return {layer: length for layer, length in watch.frozen.items() if length < watch.needed}


def some_layers_captured(evidence: Evidence) -> Iterator[str]:
    layers, watch = too_short(evidence.watch), evidence.watch
    if 0 < len(layers) < watch.num_layers:
        yield (
            f"Attention of {_layers(layers)} is inside a graph, captured for a length of {_lengths(layers)}. "
            f"The longest batch needed {watch.needed}."
        )


def own_length_too_short(evidence: Evidence) -> Iterator[str]:
    layers, watch = too_short(evidence.watch), evidence.watch
    if layers and max(layers.values()) > watch.dummy_len:
        yield (
            f"Attention was captured for a length of {_lengths(layers)}, where the dummy batch had "
            f"{watch.dummy_len}. The longest batch needed {watch.needed}."
        )


def whole_model_captured(evidence: Evidence) -> Iterator[str]:
    if layers := too_short(evidence.watch):
        yield (
            f"Attention is inside the graph, captured for a length of {_lengths(layers)}. "
            f"The longest batch needed {evidence.watch.needed}."
        )


def _layers(layers: Any) -> str:
    listed = sorted(layers)
    return f"layer{'s' if len(listed) > 1 else ''} {', '.join(map(str, listed))}"


def _lengths(layers: dict[int, int]) -> str:
    return " or ".join(map(str, sorted(set(layers.values()))))


EXERCISE = Exercise(
    prose.beside(__file__),
    solution="breakable",
    watch=PwModelWatch,
    harder=({"batch_size": 8, "num_steps": 9}, {"batch_size": 1, "num_steps": 9, "to_the_limits": 1}),
    mistakes=(
        returns_its_result,
        output_not_written,
        breaks_without_a_capture,
        no_sizes,
        nobody_captures,
        some_layers_captured,
        own_length_too_short,
        whole_model_captured,
    ),
)
