"""Multimodal models with recurrent layers repeated themselves as soon as graphs were on. Their states have
two buffers, which change places after each step, so that there must be a graph for each way round, and the
caller names it by an id. The decoder of text models does so; the multimodal one was written without, always
asked for the graph of the first way, and every other step read and wrote the wrong buffers. Repaired by
passing length and variant as the text decoder does.
"""

from types import SimpleNamespace

import torch

from mrv2lab.graphs import capture

PROJECT = "ONNX Runtime GenAI"
LINK = "https://github.com/microsoft/onnxruntime-genai/pull/2446"
MECHANISM = "incomplete-key"
CAUSE = "graph_variant"
LINE = "return self.run()"
EXECUTORS = ("emulated", "cuda")

BATCH, HIDDEN = 2, 4


class Session:
    """Runs a model on what is bound; with graphs on, it captures one for each id, and replays it then."""

    def __init__(self, weight: torch.Tensor, enable_cuda_graph: bool):
        self.weight, self.graphs = weight, {}
        self.enable_cuda_graph, self.backend = enable_cuda_graph, "cuda" if weight.is_cuda else "emulated"

    def model(self, embeds: torch.Tensor, past: torch.Tensor, present: torch.Tensor) -> torch.Tensor:
        present.copy_(past * 0.8 + torch.tanh(embeds @ self.weight))
        return torch.softmax(present @ self.weight.t(), 1)

    def run(self, feeds: list[torch.Tensor], graph_id: tuple[int, int]) -> torch.Tensor:
        if not self.enable_cuda_graph:
            return self.model(*feeds)
        if graph_id not in self.graphs:
            self.model(*feeds)
            self.graphs[graph_id] = capture(lambda: self.model(*feeds), backend=self.backend)
        self.graphs[graph_id].replay()
        return self.graphs[graph_id].outputs


class RecurrentState:
    def __init__(self, device: torch.device):
        self.buffers = [torch.zeros(BATCH, HIDDEN, device=device) for _ in range(2)]
        self.variant = 0

    def past_and_present(self) -> list[torch.Tensor]:
        return [self.buffers[self.variant], self.buffers[1 - self.variant]]

    def update(self) -> None:
        self.variant = 1 - self.variant


class MultiModalDecoderState:
    def __init__(self, fixed: bool, session: Session, device: torch.device):
        self.fixed, self.session = fixed, session
        self.inputs_embeds = torch.ones(BATCH, HIDDEN, device=device)
        self.recurrent_state = RecurrentState(device)

    def run(self, sequence_length: int = 1, graph_variant: int = 0) -> torch.Tensor:
        feeds = [self.inputs_embeds, *self.recurrent_state.past_and_present()]
        return self.session.run(feeds, (sequence_length, graph_variant))

    def run_decoder(self) -> torch.Tensor:
        if self.fixed:
            return self.run(sequence_length=1, graph_variant=self.recurrent_state.variant)
        return self.run()

    def step(self) -> torch.Tensor:
        probs = self.run_decoder().clone()
        self.recurrent_state.update()
        return probs


def program(fixed: bool, device: torch.device) -> SimpleNamespace:
    weight = torch.randn(HIDDEN, HIDDEN, generator=torch.Generator().manual_seed(0)).to(device)
    states = [MultiModalDecoderState(fixed, Session(weight, graphed), device) for graphed in (True, False)]
    numbers, (state, eager) = torch.Generator().manual_seed(1), states

    def vary() -> None:
        embeds = torch.randn(BATCH, HIDDEN, generator=numbers)
        for each in states:
            each.inputs_embeds.copy_(embeds)

    served = SimpleNamespace(step=state.step, eager=eager.step, own_graphs=True, vary=vary)
    served.requests, served.state = 5, state
    return served
