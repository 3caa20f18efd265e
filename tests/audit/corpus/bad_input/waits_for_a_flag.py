"""After vary, the step polls for a flag that nobody will set."""

import time

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["AuditError"]
SUBJECTS = ["ready", "wait", "end", "time", "sleep", "second"]


class Handshake:
    def __init__(self):
        self.ready = True

    def wait(self):
        while not self.ready:  # HERE
            time.sleep(0.002)  # HERE


class Stage:
    def __init__(self):
        torch.manual_seed(0)
        self.handshake = Handshake()
        self.x = torch.randn(3, 4, device=DEVICE)
        self.w = torch.randn(4, 4, device=DEVICE)

    def forward(self):
        self.handshake.wait()  # HERE
        return torch.relu(self.x @ self.w)


def make():
    stage = Stage()

    def vary():
        stage.handshake.ready = False

    return {"step": stage.forward, "vary": vary, "reset": None}
