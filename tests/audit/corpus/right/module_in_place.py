"""An nn.Module with gradients enabled; inputs and weights are updated in place."""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = []
SUBJECTS = []


class Attention(torch.nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.qkv = torch.nn.Linear(dim, 3 * dim)
        self.out = torch.nn.Linear(dim, dim)
        self.register_buffer("bias", torch.zeros(4, 4))

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        weights = (q @ k.transpose(-1, -2) / 8**0.5 + self.bias).softmax(-1)
        return x + self.out(weights @ v)


def make():
    torch.manual_seed(0)
    block = Attention(8).to(DEVICE)
    x = torch.randn(2, 4, 8, device=DEVICE)

    def step():
        return block(x)

    def vary():
        x.add_(0.2)
        block.bias.add_(0.5)
        with torch.no_grad():
            block.out.weight.mul_(1.5)

    return {"step": step, "vary": vary, "reset": None}
