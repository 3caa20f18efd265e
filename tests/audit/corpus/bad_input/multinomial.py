"""Tokens are drawn with torch's global generator inside the step."""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["AuditError"]
SUBJECTS = ["multinomial", "random", "repeat", "differ"]


class Sampler(torch.nn.Module):
    def __init__(self, dim=6, vocab=400):
        super().__init__()
        self.head = torch.nn.Linear(dim, vocab, device=DEVICE)

    def probabilities(self, h):
        return torch.softmax(self.head(h) / 2, dim=-1)

    def forward(self, h):
        return self.draw(self.probabilities(h))

    def draw(self, probabilities):
        return torch.multinomial(probabilities, 8, replacement=True)  # HERE


class Decoder:
    def __init__(self):
        torch.manual_seed(0)
        self.sampler = Sampler().requires_grad_(False)
        self.h = torch.randn(3, 6, device=DEVICE)
        self.history = 0

    def step(self):
        self.history += 1
        return self.sampler(self.h)  # HERE


def make():
    decoder = Decoder()
    return {"step": decoder.step, "vary": lambda: decoder.h.mul_(0.9), "reset": None}
