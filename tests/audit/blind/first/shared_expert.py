"""A shared expert that runs beside the routed ones, on a stream of its own."""

import torch

from mrv2lab import graphs  # noqa: F401

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
EXPERTS, DIM, TOKENS = 3, 6, 4


def weight(count: int, rate: float) -> torch.Tensor:
    ramp = torch.arange(count * DIM * DIM, dtype=torch.float32, device=DEVICE)
    return torch.sin(ramp * rate).view(count, DIM, DIM)


class SideStream:
    """Runs something beside the current stream, and hands its result over."""

    def __init__(self) -> None:
        self.stream = torch.cuda.Stream()
        self.ready, self.done = torch.cuda.Event(), torch.cuda.Event()

    def launch(self, fn, *args: torch.Tensor) -> torch.Tensor:
        self.ready.record(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            self.stream.wait_event(self.ready)
            result = fn(*args)
            self.done.record(self.stream)
        return result

    def join(self, result: torch.Tensor) -> torch.Tensor:
        torch.cuda.current_stream().wait_event(self.done)
        result.record_stream(torch.cuda.current_stream())
        return result


class SharedExpertMoE:
    def __init__(self) -> None:
        self.gate = torch.cos(torch.arange(DIM * EXPERTS, device=DEVICE) * 0.8).view(DIM, EXPERTS)
        self.routed, self.shared = weight(EXPERTS, 0.3), weight(1, 0.5)[0]
        self.side = SideStream()

    def _shared(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x @ self.shared)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        beside = self.side.launch(self._shared, x)
        probs = (x @ self.gate).softmax(-1)
        outputs = torch.einsum("td,edf->tef", x, self.routed)
        routed = (outputs * probs[..., None]).sum(1)
        return routed + self.side.join(beside)


class Feed:
    def __init__(self) -> None:
        self.x = torch.zeros(TOKENS, DIM, device=DEVICE)
        self.at(0)

    def at(self, turn: int) -> None:
        self.turn = turn
        self.x.copy_(torch.sin(torch.arange(TOKENS * DIM) * 0.6 + turn).view(TOKENS, DIM))


moe, feed = SharedExpertMoE(), Feed()


def step():
    return moe(feed.x)


def vary():
    feed.at(feed.turn + 1)


def reset():
    feed.at(0)
