"""Speculative verification stays on the device; the host's list of accepted lengths only feeds its
statistics.
"""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = []
SUBJECTS = []


class Verifier:
    def __init__(self, batch=3, k=4, vocab=9):
        torch.manual_seed(0)
        self.drafts = torch.randint(0, vocab, (batch, k)).to(DEVICE)
        self.target = torch.randint(0, 2, (batch, k + 1)).to(DEVICE)
        self.hidden = torch.randn(batch, k + 1, 5, device=DEVICE)
        self.accepted_history = []
        self.acceptance_rate = 0.0
        self.steps = 0

    def step(self):
        self.steps += 1
        if self.steps % 100 == 0:
            print(f"acceptance {self.acceptance_rate:.2f} over {len(self.accepted_history)}")
        match = (self.drafts % 2 == self.target[:, :-1]).long()
        accepted = match.cumprod(dim=1).sum(dim=1)
        picked = self.hidden.gather(1, accepted.view(-1, 1, 1).expand(-1, 1, 5)).squeeze(1)
        bonus = self.target.gather(1, accepted.unsqueeze(1)).squeeze(1)
        return accepted, bonus, picked

    def after(self, accepted):
        self.accepted_history += accepted
        self.acceptance_rate = sum(self.accepted_history) / (4 * len(self.accepted_history))


def make():
    verifier = Verifier()

    def vary():
        verifier.drafts.add_(torch.arange(4, device=DEVICE))
        verifier.hidden.mul_(1.01)
        verifier.after([len(verifier.accepted_history) % 5, 2, 4])

    return {"step": verifier.step, "vary": vary, "reset": None}
