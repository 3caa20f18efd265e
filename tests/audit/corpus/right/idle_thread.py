"""A daemon thread idles on an event and ticks a host counter."""

import threading

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = []
SUBJECTS = []


class Watchdog(threading.Thread):
    def __init__(self):
        super().__init__(daemon=True)
        self.stop = threading.Event()
        self.ticks = 0

    def run(self):
        while not self.stop.wait(0.05):
            self.ticks += 1


def make():
    torch.manual_seed(0)
    dog = Watchdog()
    dog.start()
    x = torch.randn(4, device=DEVICE)

    def step():
        assert dog.is_alive()
        return torch.tanh(x)

    return {"step": step, "vary": lambda: x.add_(0.5), "reset": None}
