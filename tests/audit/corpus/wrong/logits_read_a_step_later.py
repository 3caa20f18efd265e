"""The caller samples from the logits when the next step has been issued."""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["overwritten-output"]
SUBJECTS = ["logits"]


def make():
    x, weight = torch.ones(4, device=DEVICE), torch.linspace(0, 1, 4, device=DEVICE)

    def step():
        hidden = torch.tanh(x)
        logits = hidden * weight  # HERE
        return {"logits": logits, "mean": hidden.mean()}

    return {"step": step, "vary": lambda: x.add_(1), "reset": None, "in_flight": 1}
