"""Logits of a shortlist are scattered into an empty row of the full vocabulary, which is normalised as a
whole.
"""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["unwritten-read"]
SUBJECTS = ["full", "empty", "scatter", "shortlist", "log_softmax"]


class ShortlistHead(torch.nn.Module):
    """Scores only candidate tokens, and answers in the shape the sampler expects."""

    def __init__(self, dim=6, vocab=20):
        super().__init__()
        self.vocab = vocab
        self.weight = torch.nn.Parameter(torch.randn(vocab, dim, device=DEVICE))
        self.register_buffer("shortlist", torch.tensor([1, 4, 5, 11, 17], device=DEVICE))

    def forward(self, h):
        candidates = h @ self.weight[self.shortlist].T
        full = torch.empty(h.shape[0], self.vocab, device=h.device)  # HERE
        full.scatter_(1, self.shortlist.expand(h.shape[0], -1), candidates)
        return full.clamp(-50, 50)  # HERE


class Sampler:
    def __init__(self, head):
        self.head = head

    def logprobs(self, h):
        return torch.log_softmax(self.head(h), dim=-1)  # HERE


def make():
    torch.manual_seed(0)
    sampler = Sampler(ShortlistHead().requires_grad_(False))
    h = torch.randn(2, 6, device=DEVICE)

    def vary():
        h.add_(0.5)
        sampler.head.shortlist.copy_((sampler.head.shortlist + 2) % 20)

    return {"step": lambda: sampler.logprobs(h), "vary": vary, "reset": None}
