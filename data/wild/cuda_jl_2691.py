"""A captured `gemv` was right when it ran first and random afterwards, with errors when memory was freed.
Since CUDA.jl 5.7 the scalars of such a call, 1 and 0, are put into device memory and the kernel gets their
address. The graph keeps that address; nobody keeps the memory once the call has returned. The way out in
the thread: references to constants that are made beforehand, and stay.
"""

from types import SimpleNamespace

import torch

from mrv2lab.graphs import capture

PROJECT = "CUDA.jl"
LINK = "https://github.com/JuliaGPU/CUDA.jl/issues/2691"
MECHANISM = "liveness"
CAUSE = "alpha"
LINE = "alpha, beta = torch.full((1,), 2.0, device=device), torch.zeros(1, device=device)"
EXECUTORS = ("emulated", "cuda")

ROWS, COLUMNS = 3, 4


def program(fixed: bool, device: torch.device) -> SimpleNamespace:
    backend = "cuda" if device.type == "cuda" else "emulated"
    matrix = torch.linspace(0, 1, ROWS * COLUMNS, device=device).view(ROWS, COLUMNS)
    x, y = torch.ones(COLUMNS, device=device), torch.zeros(ROWS, device=device)
    kept: list[torch.Tensor] = []
    cache = SimpleNamespace(graph=None)

    def gemv(alpha: torch.Tensor, beta: torch.Tensor) -> torch.Tensor:
        y.copy_(alpha * (matrix @ x) + beta * y)
        return y

    def captured() -> torch.Tensor:
        if cache.graph is None:
            alpha, beta = torch.full((1,), 2.0, device=device), torch.zeros(1, device=device)
            if fixed:
                kept.extend((alpha, beta))
            gemv(alpha, beta)  # warms up
            cache.graph = capture(lambda: gemv(alpha, beta), backend=backend)
        cache.graph.replay()
        return y

    def eager() -> torch.Tensor:
        return gemv(torch.full((1,), 2.0, device=device), torch.zeros(1, device=device))

    def vary() -> None:
        kept.append(torch.full((1,), 7.0, device=device))  # what else is allocated
        kept.append(torch.full((1,), 9.0, device=device))
        x.add_(torch.linspace(0, 1, COLUMNS, device=device))

    return SimpleNamespace(step=captured, eager=eager, own_graphs=True, vary=vary, cache=cache)
