"""topk with the k of the request, scattered into a dense tensor."""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["frozen-host-value"]
SUBJECTS = ["k", "top_k", "request"]


class Routing:
    def __init__(self):
        torch.manual_seed(0)
        self.logits = torch.randn(4, 8, device=DEVICE)
        self.top_k = 2

    def weights(self):
        values, ids = torch.topk(self.logits, self.top_k, dim=-1)  # HERE
        return torch.zeros_like(self.logits).scatter_(1, ids, values.softmax(-1))  # HERE


def make():
    routing = Routing()

    def vary():
        routing.top_k += 1

    return {"step": routing.weights, "vary": vary, "reset": None}
