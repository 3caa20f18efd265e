"""Half the speed with drafts in mode FULL: no graph was ever replayed for batches of pure decodes. A graph
is found by tokens, requests and whether the batch is uniform. Captures register as many requests as tokens;
the dispatcher looks for tokens divided by the tokens of a request, finds nothing and falls back to eager
steps. Repaired by asking for the key that was registered.
"""

from types import SimpleNamespace

import torch

from mrv2lab.graphs import capture, new_pool

PROJECT = "vLLM"
LINK = "https://github.com/vllm-project/vllm/pull/36165"
MECHANISM = "silent-eager"
CAUSE = "num_reqs"
LINE = "num_reqs = num_tokens // QUERY_LEN"
EXECUTORS = ("emulated", "cuda")
SYMPTOM = "speed"

QUERY_LEN, SIZES, HIDDEN = 2, (2, 4, 8), 4


class CudagraphDispatcher:
    """Graphs of one small model by batch descriptor: tokens and requests."""

    def __init__(self, fixed: bool, device: torch.device):
        self.fixed, self.num_tokens = fixed, SIZES[-1]
        backend = "cuda" if device.type == "cuda" else "emulated"
        pool = new_pool(backend)
        self.hidden = torch.ones(SIZES[-1], HIDDEN, device=device)
        self.weight = torch.linspace(-1, 1, HIDDEN * HIDDEN, device=device).reshape(HIDDEN, HIDDEN)
        self.model(SIZES[-1])
        self.graphs = {
            (n, n): capture(lambda n=n: self.model(n), backend=backend, pool=pool) for n in reversed(SIZES)
        }

    def model(self, num_tokens: int) -> torch.Tensor:
        return (self.hidden[:num_tokens] @ self.weight).relu() @ self.weight

    def dispatch(self, num_tokens: int) -> tuple[int, int]:
        num_reqs = num_tokens // QUERY_LEN
        if self.fixed:
            num_reqs = num_tokens
        return num_tokens, num_reqs

    def execute(self) -> torch.Tensor:
        padded = min(n for n in SIZES if n >= self.num_tokens)
        graph = self.graphs.get(self.dispatch(padded))
        if graph is None:
            return self.model(self.num_tokens)
        graph.replay()
        return graph.outputs


def program(fixed: bool, device: torch.device) -> SimpleNamespace:
    dispatcher = CudagraphDispatcher(fixed, device)
    numbers, sizes = torch.Generator().manual_seed(0), iter((4, 6, 2) * 8)

    def vary() -> None:
        dispatcher.num_tokens = next(sizes)
        dispatcher.hidden.copy_(torch.rand(SIZES[-1], HIDDEN, generator=numbers))

    return SimpleNamespace(
        step=dispatcher.execute,
        eager=lambda: dispatcher.model(dispatcher.num_tokens),
        own_graphs=True,
        vary=vary,
        rows=lambda: dispatcher.num_tokens,
        dispatcher=dispatcher,
    )
