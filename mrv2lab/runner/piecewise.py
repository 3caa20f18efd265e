"""A model cut at attention before anything is captured: what torch.compile does for vLLM's piecewise graphs.

There the cut is made in the traced graph (`split_graph` in `vllm/compilation/backends.py`); here by hand.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from mrv2lab.graphs import CapturedGraph, GraphPool, capture
from mrv2lab.graphs.work import splitting
from mrv2lab.runner.model import Decoder, rms_norm


class CUDAGraphWrapper:
    """Captures a piece of a model once for each shape, then replays. Mirrors `CUDAGraphWrapper`. Its inputs
    have to be at the same addresses at every call; the outputs always are.
    """

    def __init__(self, piece: Callable[..., Any], *, backend: str, pool: GraphPool):
        self.piece, self.backend, self.pool = piece, backend, pool
        self.entries: dict[tuple[torch.Size, ...], tuple[CapturedGraph, Any]] = {}

    def __call__(self, *inputs: torch.Tensor) -> Any:
        """The call that captures returns memory in which nothing has been computed yet."""
        shapes = tuple(tensor.shape for tensor in inputs)
        if shapes not in self.entries:
            return self._capture(shapes, inputs)
        graph, outputs = self.entries[shapes]
        graph.replay()
        return outputs

    def _capture(self, shapes: tuple[torch.Size, ...], inputs: tuple[torch.Tensor, ...]) -> Any:
        graph = capture(lambda: self.piece(*inputs), backend=self.backend, pool=self.pool)
        # The caller holds the outputs until the pieces behind are captured; the entry holds addresses.
        outputs, graph.outputs = graph.outputs, None
        self.entries[shapes] = graph, tree_map_only(torch.Tensor, self.pool.alias, outputs)
        return outputs


class PiecewiseDecoder:
    """A decoder as captured pieces with attention between them: one piece more than there are layers."""

    def __init__(self, model: Decoder, *, backend: str, pool: GraphPool):
        self.model = model
        bodies: list[Callable[..., Any]] = [
            self._embed,
            *(partial(self._behind, i) for i in range(len(model.layers))),
        ]
        self.pieces = [CUDAGraphWrapper(body, backend=backend, pool=pool) for body in bodies]

    def __call__(self, input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """[num_tokens] ids and positions -> [num_tokens, hidden_size]."""
        result = self.pieces[0](input_ids, positions)
        for index, piece in enumerate(self.pieces[1:]):
            x, q, k, v, output = result
            attn = self.model.layer(index).attn
            with splitting():
                attn.op(q, k, v, output, attn)
            result = piece(x, output, positions)
        hidden_states: torch.Tensor = result
        return hidden_states

    def _embed(self, input_ids: torch.Tensor, positions: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return self._up_to_attention(0, self.model.embed(input_ids), positions)

    def _behind(self, index: int, x: torch.Tensor, context: torch.Tensor, positions: torch.Tensor) -> Any:
        x = self.model.layer(index).behind_attention(x, context)
        if index + 1 == len(self.model.layers):
            return rms_norm(x)
        return self._up_to_attention(index + 1, x, positions)

    def _up_to_attention(
        self, index: int, x: torch.Tensor, positions: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        """What the next pieces need, attention's output buffer included: it lies in the graph's memory."""
        q, k, v = self.model.layer(index).before_attention(x, positions)
        return x, q, k, v, torch.empty_like(q)
