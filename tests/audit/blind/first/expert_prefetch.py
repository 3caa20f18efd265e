"""Offloaded expert weights that a copy stream brings in before they are used."""

import torch

from mrv2lab import graphs  # noqa: F401

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
EXPERTS, DIM, TOKENS = 3, 6, 4


class ExpertStore:
    """All experts, in slow memory of the device."""

    def __init__(self) -> None:
        ramp = torch.arange(EXPERTS * DIM * DIM, dtype=torch.float32, device=DEVICE)
        self.weights = torch.sin(ramp * 0.17).view(EXPERTS, DIM, DIM)


class Prefetcher:
    def __init__(self, store: ExpertStore) -> None:
        self.store = store
        self.slot = torch.zeros(DIM, DIM, device=DEVICE)
        self.copy_stream = torch.cuda.Stream()
        self.done = torch.cuda.Event()

    def start(self, expert: torch.Tensor) -> None:
        if not torch.cuda.is_current_stream_capturing():
            self.copy_stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.copy_stream):
            self.slot.copy_(self.store.weights.index_select(0, expert)[0])
            self.done.record(self.copy_stream)

    def wait(self) -> torch.Tensor:
        if not torch.cuda.is_current_stream_capturing():
            torch.cuda.current_stream().wait_event(self.done)
        return self.slot


class OffloadedMoE:
    def __init__(self) -> None:
        self.prefetcher = Prefetcher(ExpertStore())
        self.dense = torch.cos(torch.arange(DIM * DIM, device=DEVICE) * 0.41).view(DIM, DIM)
        self.x = torch.zeros(TOKENS, DIM, device=DEVICE)
        self.expert = torch.zeros(1, dtype=torch.int64, device=DEVICE)

    def forward(self) -> torch.Tensor:
        self.prefetcher.start(self.expert)
        hidden = torch.tanh(self.x @ self.dense)
        return hidden @ self.prefetcher.wait()


class Requests:
    def __init__(self, model: OffloadedMoE) -> None:
        self.model, self.turn = model, 0
        self.load()

    def load(self) -> None:
        values = torch.cos(torch.arange(TOKENS * DIM, dtype=torch.float32) * 0.2 + self.turn)
        self.model.x.copy_(values.view(TOKENS, DIM))
        self.model.expert.fill_(self.turn % EXPERTS)

    def next(self) -> None:
        self.turn += 1
        self.load()

    def restart(self) -> None:
        self.turn = 0
        self.model.prefetcher.slot.zero_()
        self.load()


model = OffloadedMoE()
requests = Requests(model)


def step():
    return model.forward()


def vary():
    requests.next()


def reset():
    requests.restart()
