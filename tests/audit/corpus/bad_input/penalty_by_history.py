"""The step appends to the history on the host, whose length sets the penalty of the next step."""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["frozen-host-value", "host-sync", "AuditError"]
SUBJECTS = ["generated", "penal", "repeat", "grow", "len", "differ"]


class RepetitionPenalty:
    def __init__(self, vocab):
        self.generated = []
        self.seen = torch.zeros(vocab, device=DEVICE)

    def observe(self, token):
        self.generated.append(token)  # HERE

    @property
    def strength(self):
        return 0.1 * len(self.generated)  # HERE


class Sampler:
    def __init__(self, vocab=8):
        torch.manual_seed(0)
        self.logits = torch.randn(vocab, device=DEVICE)
        self.penalty = RepetitionPenalty(vocab)
        self.next_token = 2

    def step(self):
        self.penalty.observe(self.next_token)  # HERE
        self.penalty.seen[self.next_token] = 1.0
        penalised = self.logits - self.penalty.strength * self.penalty.seen  # HERE
        return penalised.log_softmax(-1)


def make():
    sampler = Sampler()

    def vary():
        sampler.next_token = (sampler.next_token + 1) % 8

    return {"step": sampler.step, "vary": vary, "reset": None}
