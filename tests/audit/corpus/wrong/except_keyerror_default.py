"""No override at capture: the KeyError branch is frozen; later there is one."""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["frozen-host-value", "lost-kernel", "moved-address"]
SUBJECTS = ["overrides", "bias", "user"]


class Store:
    def __init__(self):
        self.overrides = {}

    def bias(self, user):
        try:
            found = self.overrides[user]  # HERE
        except KeyError:
            return None
        else:
            return found


def make():
    torch.manual_seed(0)
    logits, store = torch.randn(6, device=DEVICE), Store()

    def step():
        bias = store.bias("ann")  # HERE
        out = logits.exp()
        return out if bias is None else out + bias  # HERE

    def vary():
        store.overrides.setdefault("ann", torch.zeros(6, device=DEVICE)).add_(1)

    return {"step": step, "vary": vary, "reset": None}
