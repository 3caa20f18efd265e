"""Chunked prefill: a generator yields the chunks of as many tokens as the scheduler counted."""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["lost-kernel", "frozen-host-value"]
SUBJECTS = ["num_tokens", "chunk", "lo", "hi", "mm", "tanh"]


class ChunkedPrefill:
    def __init__(self, max_tokens=32, chunk=4, dim=6):
        torch.manual_seed(0)
        self.chunk = chunk
        self.num_tokens = 8
        self.hidden = torch.randn(max_tokens, dim, device=DEVICE)
        self.out = torch.zeros(max_tokens, dim, device=DEVICE)
        self.state = torch.zeros(dim, device=DEVICE)
        self.w = torch.randn(dim, dim, device=DEVICE) / dim

    def chunks(self):
        lo = 0
        while lo < self.num_tokens:  # HERE
            hi = min(lo + self.chunk, self.num_tokens)
            yield lo, hi
            lo = hi

    def forward(self):
        self.state.zero_()
        self.out.zero_()
        for lo, hi in self.chunks():
            mixed = torch.tanh(self.hidden[lo:hi] @ self.w + self.state)  # HERE
            self.out[lo:hi] = mixed  # HERE
            self.state.copy_(mixed.mean(0))
        return self.out


def make():
    model = ChunkedPrefill()

    def schedule():
        model.hidden.neg_()
        model.num_tokens += 5

    return {"step": model.forward, "vary": schedule, "reset": None}
