"""nn.MultiheadAttention in eval with a mask that is written in place."""

import torch
from torch import nn

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = []
SUBJECTS = []


def make():
    torch.manual_seed(0)
    attention = nn.MultiheadAttention(8, 2, batch_first=True).to(DEVICE).eval()
    x = torch.randn(2, 4, 8, device=DEVICE)
    padding = torch.zeros(2, 4, dtype=torch.bool, device=DEVICE)
    padding[:, 3] = True

    @torch.no_grad()
    def step():
        out, weights = attention(x, x, x, key_padding_mask=padding, need_weights=True)
        return out, weights

    def vary():
        padding[0].copy_(padding[0].roll(1))
        x.add_(0.1)

    return {"step": step, "vary": vary, "reset": None}
