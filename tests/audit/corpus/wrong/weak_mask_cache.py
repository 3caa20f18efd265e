"""Grammar masks live in a WeakKeyDictionary by request; the next request gets another mask."""

import weakref

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["moved-address", "lost-kernel", "frozen-host-value"]
SUBJECTS = ["mask", "grammar", "request", "cache"]


class Grammar:
    def __init__(self, allowed):
        self.allowed = allowed


class Request:
    def __init__(self, number):
        self.number = number
        self.grammar = Grammar({number % 7, (3 * number + 1) % 7, 8})


class MaskCache:
    def __init__(self, vocab):
        self.vocab = vocab
        self.masks = weakref.WeakKeyDictionary()

    def get(self, request):
        if request not in self.masks:  # HERE
            mask = torch.full((self.vocab,), float("-inf"), device=DEVICE)  # HERE
            for token in sorted(request.grammar.allowed):
                mask[token] = 0.0
            self.masks[request] = mask
        return self.masks[request]  # HERE


class GuidedDecoder:
    def __init__(self, vocab=10):
        torch.manual_seed(0)
        self.cache = MaskCache(vocab)
        self.request = Request(1)
        self.hidden = torch.randn(4, device=DEVICE)
        self.head = torch.randn(vocab, 4, device=DEVICE)

    def step(self):
        logits = self.head @ self.hidden
        return torch.softmax(logits + self.cache.get(self.request), dim=-1)  # HERE

    def next_request(self):
        self.hidden.add_(0.2)
        self.request = Request(self.request.number + 1)


def make():
    decoder = GuidedDecoder()
    return {"step": decoder.step, "vary": decoder.next_request, "reset": None}
