"""No vary given: a deterministic step over constants, with nested outputs and None among them."""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = []
SUBJECTS = []


def make():
    torch.manual_seed(0)
    x = torch.randn(4, 4, device=DEVICE)

    def step():
        values, indices = x.topk(2)
        return {"values": values, "aux": [indices, None, "label", 3]}

    return {"step": step, "vary": None, "reset": None}
