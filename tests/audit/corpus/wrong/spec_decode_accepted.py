"""The hidden state after the last accepted draft token is picked by lengths that the host keeps."""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["frozen-host-value"]
SUBJECTS = ["accepted"]


class SpecDecodeRunner:
    """Target model over `k + 1` draft positions per request; the head runs at the last accepted one."""

    def __init__(self, batch=3, k=3, dim=8, vocab=12):
        torch.manual_seed(0)
        self.k = k
        self.embed = torch.randn(vocab, dim, device=DEVICE)
        self.head = torch.randn(dim, vocab, device=DEVICE)
        self.drafts = torch.randint(0, vocab, (batch, k + 1)).to(DEVICE)
        self.accepted = [0, 2, 1]

    def target(self):
        h = self.embed[self.drafts]
        return torch.cumsum(h, dim=1) / torch.arange(1, self.k + 2, device=DEVICE).view(1, -1, 1)

    def step(self):
        hidden = self.target()
        last = torch.stack([hidden[i, n] for i, n in enumerate(self.accepted)])  # HERE
        return torch.log_softmax(last @ self.head, dim=-1)

    def next_drafts(self):
        self.drafts.copy_((self.drafts + 5) % 12)
        self.accepted = [(n + 1 + i) % (self.k + 1) for i, n in enumerate(self.accepted)]


def make():
    runner = SpecDecodeRunner()
    return {"step": runner.step, "vary": runner.next_drafts, "reset": None}
