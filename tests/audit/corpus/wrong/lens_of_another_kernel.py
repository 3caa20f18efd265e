"""Which of two buffers holds the lengths follows from the longest one; the graph reads that of capture."""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["frozen-host-value"]
SUBJECTS = ["max_seq_len"]


class Backend:
    def __init__(self):
        self.cache = torch.linspace(0, 1, 16, device=DEVICE)
        self.short, self.long = (torch.ones(3, dtype=torch.int64, device=DEVICE) for _ in range(2))
        self.max_seq_len = 1 << 20

    def is_short(self):
        return self.max_seq_len <= 1024  # HERE

    def build(self, lens):
        self.max_seq_len = max(lens)
        (self.short if self.is_short() else self.long).copy_(torch.tensor(lens))

    def forward(self):
        lens = self.short if self.is_short() else self.long
        seen = torch.arange(16, device=DEVICE) < lens[:, None]
        return (seen * self.cache).sum(1)


def make():
    backend = Backend()
    return {"step": backend.forward, "vary": lambda: backend.build([3, 7, 16]), "reset": None}
