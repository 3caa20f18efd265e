"""Verification of drafted tokens; the number of accepted ones comes back through pinned memory."""

import torch

from mrv2lab import graphs

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
NUM_DRAFTS, VOCAB, DIM = 4, 10, 6


class Readback:
    """One number on its way to the host."""

    def __init__(self) -> None:
        self.pinned = graphs.host(torch.zeros(1, dtype=torch.int64), pinned=True)

    def send(self, value: torch.Tensor) -> None:
        self.pinned.copy_(value, non_blocking=True)
        if not torch.cuda.is_current_stream_capturing() and torch.cuda.is_available():
            torch.cuda.current_stream().synchronize()

    def receive(self) -> int:
        return int(self.pinned[0])


class Verifier:
    def __init__(self) -> None:
        ramp = torch.arange(DIM * VOCAB, dtype=torch.float32, device=DEVICE)
        self.head = torch.sin(ramp * 1.1).view(DIM, VOCAB)
        self.hidden = torch.zeros(NUM_DRAFTS + 1, DIM, device=DEVICE)
        self.drafts = torch.zeros(NUM_DRAFTS, dtype=torch.int64, device=DEVICE)
        self.readback = Readback()
        self.turn = 0
        self.load()

    def load(self) -> None:
        values = torch.cos(torch.arange((NUM_DRAFTS + 1) * DIM, dtype=torch.float32) * 0.6 + self.turn)
        self.hidden.copy_(values.view(NUM_DRAFTS + 1, DIM))
        right = (self.hidden @ self.head).argmax(-1)[:NUM_DRAFTS]
        self.drafts.copy_(right)
        self.drafts[(self.turn + 1) % NUM_DRAFTS :] += 1

    def next_tokens(self) -> tuple[torch.Tensor, torch.Tensor]:
        target = (self.hidden @ self.head).argmax(-1)
        matches = (target[:NUM_DRAFTS] == self.drafts).to(torch.int64)
        self.readback.send(matches.cumprod(0).sum(0, keepdim=True))
        accepted = self.readback.receive()
        kept = self.hidden[: NUM_DRAFTS + 1] * 1.0
        kept[accepted + 1 :].zero_()
        return target[accepted : accepted + 1].clone(), kept

    def next_request(self) -> None:
        self.turn += 1
        self.load()

    def restart(self) -> None:
        self.turn = 0
        self.readback.pinned.zero_()
        self.load()


verifier = Verifier()


def step():
    return verifier.next_tokens()


def vary():
    verifier.next_request()


def reset():
    verifier.restart()
