"""The receiver thread of a pipeline stage hands over each microbatch as a tensor of its own."""

import queue
import threading

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["moved-address"]
SUBJECTS = ["inbox", "hidden", "received"]


class Receiver:
    """Stands for the previous pipeline rank: activations arrive on another thread."""

    def __init__(self):
        self.ready = queue.Queue()
        self.sent = 0

    def _send(self, number):
        g = torch.Generator().manual_seed(number)
        self.ready.put(torch.randn(3, 6, generator=g).to(DEVICE))

    def fetch(self):
        thread = threading.Thread(target=self._send, args=(self.sent,))
        self.sent += 1
        thread.start()
        thread.join()
        return self.ready.get()


class Stage:
    def __init__(self):
        torch.manual_seed(0)
        self.receiver = Receiver()
        self.weights = [torch.randn(6, 6, device=DEVICE) / 3 for _ in range(2)]
        self.receive()

    def receive(self):
        self.received = self.receiver.fetch()

    def forward(self):
        h = self.received  # HERE
        for w in self.weights:
            h = h + torch.nn.functional.gelu(h @ w)  # HERE
        return h


def make():
    stage = Stage()
    return {"step": stage.forward, "vary": stage.receive, "reset": None}
