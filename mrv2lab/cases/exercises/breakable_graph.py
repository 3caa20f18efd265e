"""The exercise of `breakable_graph`: keep the host's lengths out of the graph."""

from collections.abc import Callable
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


def returns_its_result(evidence: Evidence) -> str | None:
    trouble, watch = evidence.trouble, evidence.watch
    if trouble is not None and trouble.error == "BreakError" and " returned a " in trouble.message:
        return "Where the capture broke, something was returned."
    if watch.returned and watch.unwritten:
        return f"The op returned a {min(watch.returned)}, and what attention computed was not in output."
    return None


def output_not_written(evidence: Evidence) -> str | None:
    watch = evidence.watch
    if not watch.unwritten:
        return None
    return f"In {_layers(watch.unwritten)} what attention computed was not in output when the op was done."


def breaks_without_a_capture(evidence: Evidence) -> str | None:
    watch = evidence.watch
    if evidence.run.verdict != "eager" or watch.asked or not watch.replaced:
        return None
    return (
        f"The op of {_layers(watch.replaced)} is a new one, manager.use_breakable_cg is False, and no "
        "graph ran."
    )


def no_sizes(evidence: Evidence) -> str | None:
    watch = evidence.watch
    if evidence.run.verdict != "eager" or watch.num_sizes or watch.asked is None:
        return None
    return "The manager has no size left to capture, and no graph ran."


def nobody_captures(evidence: Evidence) -> str | None:
    watch = evidence.watch
    if evidence.run.verdict != "eager" or watch.asked is not False:
        return None
    return "manager.use_breakable_cg is False, and no graph ran."


def too_short(watch: PwModelWatch) -> dict[int, int]:
    """Layers whose attention was captured at a length that a batch went beyond."""
    return {layer: length for layer, length in watch.frozen.items() if length < watch.needed}


def some_layers_captured(evidence: Evidence) -> str | None:
    layers = too_short(evidence.watch)
    if not layers or len(layers) == evidence.watch.num_layers:
        return None
    return (
        f"Attention of {_layers(layers)} is inside a graph, captured for a length of {_lengths(layers)}. "
        f"{_needed(evidence)}"
    )


def own_length_too_short(evidence: Evidence) -> str | None:
    layers = too_short(evidence.watch)
    if not layers or max(layers.values()) <= evidence.watch.dummy_len:
        return None
    return (
        f"Attention was captured for a length of {_lengths(layers)}, where the dummy batch had "
        f"{evidence.watch.dummy_len}. {_needed(evidence)}"
    )


def whole_model_captured(evidence: Evidence) -> str | None:
    layers = too_short(evidence.watch)
    if not layers:
        return None
    return f"Attention is inside the graph, captured for a length of {_lengths(layers)}. {_needed(evidence)}"


def _layers(layers: Any) -> str:
    listed = sorted(layers)
    return f"layer{'s' if len(listed) > 1 else ''} {', '.join(map(str, listed))}"


def _lengths(layers: dict[int, int]) -> str:
    return " or ".join(map(str, sorted(set(layers.values()))))


def _needed(evidence: Evidence) -> str:
    return f"The longest batch needed {evidence.watch.needed}."


EXERCISE = Exercise(
    prose.beside(__file__),
    solution="breakable",
    watch=PwModelWatch,
    harder=({"batch_size": 8, "num_steps": 9},),
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
