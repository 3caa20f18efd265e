"""The capture of the prefill turns a fallback on, and the decode step is captured with it."""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["cross-capture"]
SUBJECTS = ["use_fallback"]


class Model:
    def __init__(self):
        self.x = torch.ones(4, device=DEVICE)
        self.use_fallback = False

    def prefill(self):
        self.use_fallback = True
        return self.x * 2

    def decode(self):
        if self.use_fallback:  # HERE
            return self.x * 3
        return self.x * 5


def make():
    model = Model()
    vary = lambda: model.x.add_(1)
    return {"step": model.decode, "vary": vary, "reset": None, "beside": [model.prefill]}
