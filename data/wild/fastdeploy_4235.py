"""With prefill and decode on separate nodes some answers grew far too long once CUDA graphs were on, and
the blocks of the cache thrashed. The messenger that sends the cache follows a step number, which the
attention backend counts up on the host whenever it is initialised. Capturing graphs initialises it many
times, so that serving begins with a number far ahead of what was prefilled. Repaired by resetting it after
the captures.
"""

from types import SimpleNamespace

import torch

from mrv2lab.graphs import capture

PROJECT = "FastDeploy"
LINK = "https://github.com/PaddlePaddle/FastDeploy/pull/4235"
MECHANISM = "cross-capture"
CAUSE = "self.prefilled_step_idx"
LINE = "self.prefilled_step_idx += 1"
EXECUTORS = ("emulated", "cuda")

STEPS, HIDDEN, SIZES = 16, 4, (4, 2, 1)


class Worker:
    """A prefill node: each step fills a place of the cache, and the messenger sends one."""

    def __init__(self, fixed: bool, device: torch.device):
        self.backend = "cuda" if device.type == "cuda" else "emulated"
        self.prefilled_step_idx, self.steps = -1, 0
        self.signal = torch.zeros(1, dtype=torch.int64, device=device)
        self.place = torch.zeros(1, dtype=torch.int64, device=device)
        self.cache = torch.zeros(STEPS, HIDDEN, device=device)
        self.hidden = torch.ones(1, HIDDEN, device=device)
        self.graphs = {}
        for size in SIZES:
            self.init_attention_metadata()
            self.forward()
            self.graphs[size] = capture(self.forward, backend=self.backend)
        self.cache.zero_()
        if fixed:
            self.prefilled_step_idx = -1

    def init_attention_metadata(self) -> None:
        self.prefilled_step_idx += 1
        self.signal.fill_(self.prefilled_step_idx)

    def forward(self) -> torch.Tensor:
        self.cache.index_copy_(0, self.place, self.hidden * 2)
        return self.cache.index_select(0, self.signal)  # what is sent

    def prefill(self, with_graph: bool) -> torch.Tensor:
        self.init_attention_metadata()
        self.place.fill_(self.steps)
        self.steps += 1
        if not with_graph:
            return self.forward()
        self.graphs[1].replay()
        return self.graphs[1].outputs


def program(fixed: bool, device: torch.device) -> SimpleNamespace:
    worker = Worker(fixed, device)
    return SimpleNamespace(
        step=lambda: worker.prefill(with_graph=True),
        eager=lambda: worker.prefill(with_graph=False),
        own_graphs=True,
        vary=lambda: worker.hidden.add_(1),
        worker=worker,
    )
