"""On one generation of GPUs the graph of a decode step gave garbage, while the same code was right on others.
Graphs are built by hand here: each function that launches a kernel also notes it in a list, and the list is
what is replayed. One variant of the quantized product, which only that generation picks, was written without
the part that notes it: its kernels ran in the recorded step and in no other, and what comes after them reads
old buffers. Repaired by noting them as all others do.
"""

from collections.abc import Callable
from functools import partial
from itertools import count
from types import SimpleNamespace

import torch

from mrv2lab.graphs import capture

PROJECT = "aprender"
LINK = "https://github.com/paiml/aprender/pull/2174"
MECHANISM = "lost-kernel"
CAUSE = "self.graph_recording"
LINE = "gemv(weight, x, out)"
EXECUTORS = ("emulated", "cuda")

HIDDEN, LAYERS, BLOCK = 8, 2, 4


class Q4KWeight:
    def __init__(self, seed: int, device: torch.device):
        numbers = torch.Generator().manual_seed(seed)
        self.quants = torch.randint(-7, 8, (HIDDEN, HIDDEN // BLOCK, BLOCK), generator=numbers).to(device)
        self.scales = torch.rand(HIDDEN, HIDDEN // BLOCK, 1, generator=numbers).to(device) / 8


def gemv(weight: Q4KWeight, x: torch.Tensor, out: torch.Tensor) -> None:
    out.copy_((weight.quants * weight.scales * x.view(-1, BLOCK)).sum((1, 2)))


def gemv_dp4a(weight: Q4KWeight, x: torch.Tensor, out: torch.Tensor) -> None:
    gemv(weight, (x * 16).round() / 16, out)


class CudaExecutor:
    def __init__(self, fixed: bool, compute_capability: int, device: torch.device):
        self.fixed, self.is_mwv = fixed, compute_capability >= 120
        self.backend, self.graph_recording = "cuda" if device.type == "cuda" else "emulated", None
        self.graph, self.embedding = None, torch.ones(HIDDEN, device=device)
        self.hidden, self.normed, self.up, self.down = torch.zeros(4, HIDDEN, device=device)
        self.layers = [[Q4KWeight(2 * n + m, device) for m in range(2)] for n in range(LAYERS)]

    def launch(self, kernel: Callable[[], object]) -> None:
        kernel()
        if self.graph_recording is not None:
            self.graph_recording.append(kernel)

    def q4k_gemv(self, weight: Q4KWeight, x: torch.Tensor, out: torch.Tensor) -> None:
        if not self.is_mwv:
            self.launch(partial(gemv_dp4a, weight, x, out))
        elif self.fixed:
            self.launch(partial(gemv, weight, x, out))
        else:
            gemv(weight, x, out)

    def forward(self) -> torch.Tensor:
        self.launch(lambda: self.hidden.copy_(self.embedding))
        for up, down in self.layers:
            self.launch(lambda: self.normed.copy_(self.hidden / self.hidden.square().mean().sqrt()))
            self.q4k_gemv(up, self.normed, self.up)
            self.launch(lambda: self.up.copy_(torch.nn.functional.silu(self.up)))
            self.q4k_gemv(down, self.up, self.down)
            self.launch(lambda: self.hidden.add_(self.down))
        return self.hidden

    def forward_graphed(self) -> torch.Tensor:
        if self.graph is None:
            self.graph_recording = recorded = []
            self.forward()
            self.graph_recording = None
            self.graph = capture(lambda: [kernel() for kernel in recorded], backend=self.backend)
        self.graph.replay()
        return self.hidden


def program(fixed: bool, device: torch.device) -> SimpleNamespace:
    executor, tokens = CudaExecutor(fixed, 121, device), count()

    def vary() -> None:
        executor.embedding.copy_(torch.randn(HIDDEN, generator=torch.Generator().manual_seed(next(tokens))))

    step, eager = executor.forward_graphed, executor.forward
    return SimpleNamespace(step=step, eager=eager, own_graphs=True, vary=vary, executor=executor)
