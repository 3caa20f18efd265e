"""Of a rollout in reinforcement learning one row came back wrong, the first time after the engine had slept.
On waking it captures its graphs again, and a capture runs the model once before, which writes to the cache.
What such a run reads is made up for it; where it writes comes from buffers that nobody has touched since the
last real batch, and so it overwrites rows of requests that are alive. At startup these buffers are zero, and
only row 0 is hit. Repaired by blanking the places of writing before a capture.
"""

from itertools import count
from types import SimpleNamespace

import torch

from mrv2lab.graphs import capture

PROJECT = "ATOM"
LINK = "https://github.com/ROCm/ATOM/pull/2267"
MECHANISM = "left-behind"
CAUSE = "self.slot_mapping"
LINE = "self.kv_cache.index_copy_(0, self.slot_mapping[:bs], hidden)"
EXECUTORS = ("emulated", "cuda")

MAX_BS, HIDDEN, CONTEXT, STEPS = 3, 4, 4, 4


class ModelRunner:
    def __init__(self, fixed: bool, enforce_eager: bool, device: torch.device):
        self.fixed, self.enforce_eager = fixed, enforce_eager
        self.backend = "cuda" if device.type == "cuda" else "emulated"
        self.kv_cache = torch.zeros(1 + MAX_BS * CONTEXT, HIDDEN, device=device)
        self.hidden = torch.ones(MAX_BS, HIDDEN, device=device)
        self.kv_indices = torch.zeros(MAX_BS, CONTEXT, dtype=torch.int64, device=device)
        self.slot_mapping, self.kv_lens = (self.kv_indices[:, 0].clone() for _ in range(2))
        self.graphs, self.bs = {}, 1
        self.capture_cudagraph()

    def build_for_cudagraph_capture(self, bs: int) -> None:
        self.kv_indices[:bs].zero_()
        self.kv_lens[:bs].fill_(1)
        if self.fixed:
            self.slot_mapping[:bs].zero_()

    def capture_cudagraph(self) -> None:
        for bs in () if self.enforce_eager else range(MAX_BS, 0, -1):
            self.build_for_cudagraph_capture(bs)
            self.forward(bs)
            self.graphs[bs] = capture(lambda bs=bs: self.forward(bs), backend=self.backend)

    def forward(self, bs: int) -> torch.Tensor:
        hidden = torch.tanh(self.hidden[:bs])
        self.kv_cache.index_copy_(0, self.slot_mapping[:bs], hidden)
        kv = self.kv_cache[self.kv_indices[:bs]]
        unseen = torch.arange(CONTEXT, device=kv.device) >= self.kv_lens[:bs, None]
        probs = torch.softmax((kv @ hidden[:, :, None])[:, :, 0].masked_fill(unseen, -1e9), 1)
        return (probs[:, None] @ kv)[:, 0]

    def prepare_decode(self, kv_lens: list[int]) -> None:
        self.bs = len(kv_lens)
        rows, lens = 1 + torch.arange(self.bs * CONTEXT).view(self.bs, CONTEXT), torch.tensor(kv_lens)
        self.kv_indices[: self.bs].copy_(rows)
        self.kv_lens[: self.bs].copy_(lens)
        self.slot_mapping[: self.bs].copy_(rows.gather(1, lens[:, None] - 1)[:, 0])

    def sleep_and_wake_up(self) -> None:
        self.graphs.clear()
        self.hidden.fill_(1)
        self.capture_cudagraph()

    def run_model(self) -> torch.Tensor:
        if self.enforce_eager:
            return self.forward(self.bs)
        self.graphs[self.bs].replay()
        return self.graphs[self.bs].outputs


def program(fixed: bool, device: torch.device) -> SimpleNamespace:
    runners = [ModelRunner(fixed, enforce_eager, device) for enforce_eager in (False, True)]
    numbers, steps, (runner, eager) = torch.Generator().manual_seed(0), count(), runners

    def vary() -> None:
        step, hidden = next(steps) % STEPS, torch.randn(MAX_BS, HIDDEN, generator=numbers)
        for each in runners:
            if step == 2:
                each.sleep_and_wake_up()
            each.prepare_decode([step + 1] * MAX_BS)
            each.hidden.copy_(hidden)

    served = SimpleNamespace(step=runner.run_model, eager=eager.run_model, own_graphs=True, vary=vary)
    served.requests, served.runner = STEPS, runner
    return served
