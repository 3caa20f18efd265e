"""Logits by small graphs of their own, one for each number of requests."""

from dataclasses import dataclass, field

import torch

from mrv2lab.graphs import CapturedGraph, GraphPool, capture
from mrv2lab.runner.model import Decoder


@dataclass
class LogitsGraphs:
    """Captured on first use, replayed ever after."""

    model: Decoder  # whose logits
    backend: str  # `cuda` or `emulated`
    pool: GraphPool  # of all graphs of the engine
    # by number of requests; each with the tensor it reads
    graphs: dict[int, tuple[torch.Tensor, CapturedGraph]] = field(default_factory=dict)

    def replay(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """[num_reqs, hidden_size] -> [num_reqs, vocab_size], in memory of the graph."""
        num_reqs = len(hidden_states)
        if num_reqs not in self.graphs:
            inputs = hidden_states.clone()
            self.model.lm_head(inputs)
            graph = capture(lambda: self.model.lm_head(inputs), backend=self.backend, pool=self.pool)
            self.graphs[num_reqs] = inputs, graph
        inputs, graph = self.graphs[num_reqs]
        inputs.copy_(hidden_states)
        graph.replay()
        outputs: torch.Tensor = graph.outputs
        return outputs


# ---- logits_processor.compute_logits ----


def compute_logits_by_graph(self: LogitsGraphs, hidden_states: torch.Tensor) -> torch.Tensor:
    """[num_reqs, hidden_size] -> [num_reqs, vocab_size]."""
    return self.replay(hidden_states).clone()


def compute_logits_in_pool(self: LogitsGraphs, hidden_states: torch.Tensor) -> torch.Tensor:
    """[num_reqs, hidden_size] -> [num_reqs, vocab_size]."""
    return self.replay(hidden_states)
