"""The slice length is a Python int that has grown since capture."""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["frozen-host-value"]
SUBJECTS = ["num_tokens"]


class Runner:
    def __init__(self):
        torch.manual_seed(0)
        self.hidden = torch.randn(16, 8, device=DEVICE)
        self.weight = torch.randn(8, 8, device=DEVICE)
        self.out = torch.zeros(16, 8, device=DEVICE)
        self.num_tokens = 4

    def execute(self):
        self.out.zero_()
        rows = self.hidden[: self.num_tokens]  # HERE
        self.out[: rows.shape[0]].copy_(rows @ self.weight)


def make():
    r = Runner()

    def vary():
        r.num_tokens = 4 + (r.num_tokens - 3) % 12
        r.hidden.mul_(1.01)

    return {"step": r.execute, "vary": vary, "reset": None}
