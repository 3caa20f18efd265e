"""The next step brings a new tensor instead of filling the captured one."""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["moved-address"]
SUBJECTS = ["hidden"]


class Stage:
    def __init__(self):
        torch.manual_seed(0)
        self.hidden = torch.randn(4, 8, device=DEVICE)
        self.norm = torch.nn.LayerNorm(8, device=DEVICE).requires_grad_(False)

    def __call__(self):
        return self.norm(self.hidden)  # HERE


def make():
    stage = Stage()

    def vary():
        stage.hidden = torch.randn(4, 8, device=DEVICE)

    return {"step": stage, "vary": vary, "reset": None}
