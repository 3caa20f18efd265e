"""With drafts half of all sizes of a decode batch were slow: attention ran eagerly in each step. Whole
graphs exist for multiples of a request's tokens, graphs in pieces for other sizes, and the dispatcher takes
the smallest graph that fits: for many batches one in pieces, though a slightly larger whole one would do.
Repaired by asking for a whole one first, if the batch is uniform.
"""

from types import SimpleNamespace

import torch

from mrv2lab.graphs import capture, new_pool

PROJECT = "vLLM"
LINK = "https://github.com/vllm-project/vllm/pull/53407"
MECHANISM = "silent-eager"
CAUSE = "fitting"
LINE = "return min(fitting, key=lambda key: key[0])"
EXECUTORS = ("emulated", "cuda")
SYMPTOM = "speed"

QUERY_LEN, MAX_TOKENS, HIDDEN = 3, 24, 4
FULL_SIZES, PIECEWISE_SIZES = (3, 6, 9, 18, 24), (1, 2, 4, 8, 16, 24)


class CudaGraphManager:
    """A model of two projections around attention, captured whole or in two pieces."""

    def __init__(self, fixed: bool, device: torch.device):
        self.fixed, self.num_tokens = fixed, QUERY_LEN
        self.backend = "cuda" if device.type == "cuda" else "emulated"
        self.pool = new_pool(self.backend)
        self.hidden = torch.ones(MAX_TOKENS, HIDDEN, device=device)
        self.projected, self.attended, self.out = (torch.zeros_like(self.hidden) for _ in range(3))
        self.graphs = {(size, "FULL"): [self.captured(self.whole, size)] for size in FULL_SIZES}
        for size in PIECEWISE_SIZES:
            self.graphs[size, "PIECEWISE"] = [
                self.captured(piece, size) for piece in (self.project, self.finish)
            ]

    def captured(self, fn, size: int):
        fn(size)
        return capture(lambda: fn(size), backend=self.backend, pool=self.pool)

    def project(self, n: int) -> None:
        self.projected[:n].copy_((self.hidden[:n] * 2).relu())

    def attention(self, n: int) -> None:
        tokens = self.projected[:n].view(-1, QUERY_LEN, HIDDEN)  # of each request
        self.attended[:n].copy_((torch.softmax(tokens @ tokens.mT, 2) @ tokens).view(n, HIDDEN))

    def finish(self, n: int) -> None:
        self.out[:n].copy_(self.attended[:n] + self.hidden[:n])

    def whole(self, n: int) -> torch.Tensor:
        self.project(n)
        self.attention(n)
        self.finish(n)
        return self.out

    def dispatch(self) -> tuple[int, str]:
        fitting = [key for key in self.graphs if key[0] >= self.num_tokens]
        if self.fixed:
            fitting = [key for key in fitting if key[1] == "FULL"] or fitting
        return min(fitting, key=lambda key: key[0])

    def execute(self) -> torch.Tensor:
        first, *rest = self.graphs[self.dispatch()]
        first.replay()
        if rest:
            self.attention(self.num_tokens)
            rest[0].replay()
        return self.out


def program(fixed: bool, device: torch.device) -> SimpleNamespace:
    manager = CudaGraphManager(fixed, device)
    numbers, num_reqs = torch.Generator().manual_seed(0), iter((4, 2, 5, 1) * 4)

    def vary() -> None:
        manager.num_tokens = QUERY_LEN * next(num_reqs)
        manager.hidden.copy_(torch.rand(MAX_TOKENS, HIDDEN, generator=numbers))

    return SimpleNamespace(
        step=manager.execute,
        eager=lambda: manager.whole(manager.num_tokens),
        own_graphs=True,
        vary=vary,
        rows=lambda: manager.num_tokens,
        manager=manager,
    )
