"""The caller hands in a new output tensor for each batch; the graph keeps writing into the first."""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["moved-address"]
SUBJECTS = ["logits_out", "out", "result"]


class Response:
    def __init__(self, rows, vocab):
        self.logits_out = torch.zeros(rows, vocab, device=DEVICE)


class Engine:
    """Writes into the response of the current batch and returns nothing, like a C-style kernel API."""

    def __init__(self, rows=3, dim=4, vocab=6):
        torch.manual_seed(0)
        self.x = torch.randn(rows, dim, device=DEVICE)
        self.head = torch.randn(dim, vocab, device=DEVICE)
        self.response = Response(rows, vocab)
        self.finished = []

    def step(self):
        out = self.response.logits_out  # HERE
        torch.mm(self.x, self.head, out=out)  # HERE
        out.sub_(out.logsumexp(-1, keepdim=True))  # HERE

    def next_batch(self):
        self.finished.append(self.response)
        self.response = Response(*self.response.logits_out.shape)
        self.x.add_(0.2)


def make():
    engine = Engine()
    return {"step": engine.step, "vary": engine.next_batch, "reset": None}
