"""An optional output is asked for only after capture; its buffer keeps what was there."""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["lost-kernel", "frozen-host-value"]
SUBJECTS = ["logsumexp", "return_lse", "lse"]


class Head(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.return_lse = False
        self.register_buffer("lse", torch.zeros(3))

    def forward(self, logits):
        probs = logits.softmax(-1)
        if self.return_lse:  # HERE
            self.lse.copy_(torch.logsumexp(logits, -1))  # HERE
        return probs, self.lse


def make():
    torch.manual_seed(0)
    head = Head().to(DEVICE)
    logits = torch.randn(3, 5, device=DEVICE)

    def vary():
        head.return_lse = True
        logits.add_(0.5)

    return {"step": lambda: head(logits), "vary": vary, "reset": None}
