"""Two steps share a mode and a workspace; each sets the one and writes the other before it reads."""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")


class Model:
    def __init__(self):
        self.x = torch.ones(4, device=DEVICE)
        self.workspace = torch.empty(4, device=DEVICE)
        self.mode = "decode"

    def prefill(self):
        self.mode = "prefill"
        self.workspace.copy_(self.x)
        return self.workspace * 2

    def decode(self):
        self.mode = "decode"
        self.workspace.copy_(self.x)
        return self.workspace * (3 if self.mode == "decode" else 5)


def make():
    model = Model()
    vary = lambda: model.x.add_(1)
    return {"step": model.decode, "vary": vary, "reset": None, "beside": [model.prefill]}
