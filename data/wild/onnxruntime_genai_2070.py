"""Models with recurrent layers could not be decoded from a graph. After each step the host exchanged the
buffers of past and present state, so that the next run would be bound to the other two, which invalidates a
captured run: it goes on reading the past of its capture, whatever has been computed since. Repaired by
copying present into past, in place, where graphs are captured.
"""

from itertools import count
from types import SimpleNamespace

import torch

from mrv2lab.graphs import capture

PROJECT = "ONNX Runtime GenAI"
LINK = "https://github.com/microsoft/onnxruntime-genai/pull/2070"
MECHANISM = "moved-address"
CAUSE = "pasts"
LINE = "self.pasts[i], self.presents[i] = self.presents[i], self.pasts[i]"
EXECUTORS = ("emulated", "cuda")

LAYERS, DIM = 2, 4


class RecurrentState:
    """Past and present of each linear-attention layer, as inputs and outputs of the session."""

    def __init__(self, in_place: bool, device: torch.device):
        self.in_place = in_place
        self.pasts, self.presents = (
            [torch.zeros(DIM, device=device) for _ in range(LAYERS)] for _ in range(2)
        )

    def update(self) -> None:
        for i in range(LAYERS):
            if self.in_place:
                self.pasts[i].copy_(self.presents[i])
            else:
                self.pasts[i], self.presents[i] = self.presents[i], self.pasts[i]


class Session:
    """Runs the model on what is bound; with graphs it captures its second run and replays it ever after."""

    def __init__(self, enable_cuda_graph: bool, device: torch.device):
        self.enable_cuda_graph, self.backend = enable_cuda_graph, device.type.replace("cpu", "emulated")
        self.decay = torch.linspace(0.3, 0.9, DIM, device=device)
        self.graph, self.runs = None, 0

    def model(self, hidden: torch.Tensor, pasts: list, presents: list, logits: torch.Tensor) -> None:
        for past, present in zip(pasts, presents, strict=True):
            present.copy_(past * self.decay + hidden)
            hidden = torch.tanh(present)
        logits.copy_(hidden)

    def run(self, *bound) -> None:
        if self.enable_cuda_graph and self.runs and self.graph is None:
            self.graph = capture(lambda: self.model(*bound), backend=self.backend)
        if self.graph is None:
            self.model(*bound)
        else:
            self.graph.replay()
        self.runs += 1


class Decoder:
    def __init__(self, fixed: bool, device: torch.device):
        self.session = Session(True, device)
        self.state = RecurrentState(fixed, device)
        self.hidden, self.logits = torch.ones(DIM, device=device), torch.zeros(DIM, device=device)

    def step(self) -> torch.Tensor:
        self.session.run(self.hidden, self.state.pasts, self.state.presents, self.logits)
        self.state.update()
        return self.logits.clone()

    def run_eagerly(self) -> torch.Tensor:
        self.session.enable_cuda_graph = False
        return self.step()


def program(fixed: bool, device: torch.device) -> SimpleNamespace:
    decoder, tokens = Decoder(fixed, device), count(1)

    def vary() -> None:
        decoder.hidden.copy_(torch.sin(torch.arange(DIM) + next(tokens)))

    return SimpleNamespace(
        step=decoder.step, eager=decoder.run_eagerly, own_graphs=True, vary=vary, decoder=decoder
    )
