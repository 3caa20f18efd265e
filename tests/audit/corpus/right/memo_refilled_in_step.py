"""A mask memo with a host key: the key changes, and the step refills the same buffer from device lengths
anyway.
"""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = []
SUBJECTS = []


class MaskMemo:
    def __init__(self, rows, width):
        self.buffer = None
        self.shape = (rows, width)
        self.key = None
        self.recomputed = 0

    def get(self, key, lens):
        if self.buffer is None:
            self.buffer = torch.zeros(self.shape, dtype=torch.bool, device=DEVICE)
        if key != self.key:
            self.recomputed += 1
            self.key = key
        torch.ge(torch.arange(self.shape[1], device=DEVICE), lens.unsqueeze(1), out=self.buffer)
        return self.buffer


class Layer:
    def __init__(self):
        torch.manual_seed(0)
        self.memo = MaskMemo(2, 6)
        self.scores = torch.randn(2, 6, device=DEVICE)
        self.lens_cpu = [2, 4]
        self.lens = torch.tensor(self.lens_cpu, device=DEVICE)

    def forward(self):
        mask = self.memo.get(tuple(self.lens_cpu), self.lens)
        return self.scores.masked_fill(mask, float("-inf")).softmax(-1)

    def decode(self):
        self.lens_cpu = [min(n + 1, 6) for n in self.lens_cpu]
        self.lens.copy_(torch.tensor(self.lens_cpu))


def make():
    layer = Layer()
    return {"step": layer.forward, "vary": layer.decode, "reset": None}
