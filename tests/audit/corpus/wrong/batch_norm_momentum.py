"""The momentum of a batch norm in train mode follows a schedule of the host."""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["frozen-host-value"]
SUBJECTS = ["momentum"]


class Trainer:
    def __init__(self):
        torch.manual_seed(0)
        self.norm = torch.nn.BatchNorm1d(3).to(DEVICE).train()
        self.x = torch.randn(8, 3, device=DEVICE)

    @torch.no_grad()
    def step(self):
        out = self.norm(self.x)  # HERE
        return out, self.norm.running_mean


def make():
    trainer = Trainer()

    def vary():
        trainer.norm.momentum *= 0.5
        trainer.x.add_(1)

    return {"step": trainer.step, "vary": vary, "reset": None}
