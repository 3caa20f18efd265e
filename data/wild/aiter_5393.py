"""Output tiles of split-K products silently held whatever had been in them. The workspace and its counters
of arrivals come from a cache by stream, and a capture has a stream of its own: so they are allocated inside
the first capture of a product, where the pool lends them a block that a temporary of an earlier graph had,
and each replay of that graph still writes there. The product captured first zeroes its counters itself; all
later ones find them in the cache, dirty, and never see all arrivals. Repaired by allocating them outside.
"""

from functools import lru_cache, partial
from itertools import count
from types import SimpleNamespace

import torch

from mrv2lab.graphs import capture, new_pool

PROJECT = "aiter"
LINK = "https://github.com/ROCm/aiter/pull/5393"
MECHANISM = "cross-capture"
CAUSE = "semaphore"
LINE = "semaphore = torch.zeros(TILES, device=self.device)"
EXECUTORS = ("emulated", "cuda")

ROWS, TILES, WIDTH, SPLIT_K = 2, 4, 3, 2
CAPTURE_STREAM = 7


class FlyDSL:
    """Kernels of a library, with buffers that it keeps."""

    def __init__(self, fixed: bool, device: torch.device):
        self.device, self.stream = device, 0
        self.get_split_buffers = lru_cache(self.make_split_buffers)
        if fixed:
            self.get_split_buffers(CAPTURE_STREAM)

    def make_split_buffers(self, stream: int) -> tuple[torch.Tensor, torch.Tensor]:
        semaphore = torch.zeros(TILES, device=self.device)
        return semaphore, torch.zeros(SPLIT_K, ROWS, TILES * WIDTH, device=self.device)

    def splitk_gemm(self, x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> None:
        semaphore, workspace = self.get_split_buffers(self.stream)
        for k, (part, rows) in enumerate(zip(x.chunk(SPLIT_K, 1), weight.chunk(SPLIT_K), strict=True)):
            torch.matmul(part, rows, out=workspace[k])
            semaphore.add_(1)
        complete = semaphore == SPLIT_K
        tiles, total = out.view(ROWS, TILES, WIDTH), workspace.sum(0).view(ROWS, TILES, WIDTH)
        tiles.copy_(torch.where(complete[:, None], total, tiles))
        semaphore.mul_(~complete)  # the last to arrive leaves zero


class Model:
    """Two projections with a norm before each; all have a graph, in one pool."""

    def __init__(self, fixed: bool, device: torch.device):
        backend, dim = "cuda" if device.type == "cuda" else "emulated", TILES * WIDTH
        self.ops, pool = FlyDSL(fixed, device), new_pool(backend)
        self.hidden, self.out = (torch.ones(ROWS, dim, device=device) for _ in range(2))
        grid = torch.arange(dim * dim, device=device).view(dim, dim)
        self.weights = torch.sin(grid * 1.0), torch.cos(grid * 1.0)
        self.order, self.graphs = (self.norm, self.up_proj, self.norm, self.down_proj), {}
        self.forward(use_graphs=False)
        self.ops.stream = CAPTURE_STREAM
        for layer in (self.norm, self.up_proj, self.down_proj):
            self.graphs[layer] = capture(layer, backend=backend, pool=pool)
        self.ops.stream = 0

    def norm(self) -> None:
        self.hidden.mul_(self.hidden.square().mean(1, keepdim=True).add(1e-5).rsqrt())

    def up_proj(self) -> None:
        self.ops.splitk_gemm(self.hidden, self.weights[0], self.hidden)

    def down_proj(self) -> None:
        self.ops.splitk_gemm(self.hidden, self.weights[1], self.out)

    def forward(self, use_graphs: bool) -> torch.Tensor:
        for layer in self.order:
            self.graphs[layer].replay() if use_graphs else layer()
        return self.out.clone()


def program(fixed: bool, device: torch.device) -> SimpleNamespace:
    model, tokens = Model(fixed, device), count(1)

    def vary() -> None:
        model.hidden.copy_(torch.cos(torch.arange(model.hidden.numel()) * next(tokens) * 1.0).view(ROWS, -1))

    step, eager = partial(model.forward, use_graphs=True), partial(model.forward, use_graphs=False)
    return SimpleNamespace(step=step, eager=eager, own_graphs=True, vary=vary, model=model)
