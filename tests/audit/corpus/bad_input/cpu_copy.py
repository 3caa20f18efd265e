"""Token ids are copied to the host inside the step."""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["host-sync"]
SUBJECTS = ["cpu"]


def make():
    torch.manual_seed(0)
    logits = torch.randn(2, 8, device=DEVICE)
    sent = []

    def step():
        ids = logits.argmax(-1)
        sent.append(ids.cpu())  # HERE
        return ids

    return {"step": step, "vary": lambda: logits.neg_(), "reset": sent.clear}
