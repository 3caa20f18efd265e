"""One entry of a dict of input buffers is replaced."""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["moved-address"]
SUBJECTS = ["positions", "inputs"]

inputs = {}


def make():
    torch.manual_seed(0)
    inputs["ids"] = torch.arange(6, device=DEVICE)
    inputs["positions"] = torch.arange(6, device=DEVICE)
    table = torch.randn(32, 4, device=DEVICE)
    rope = torch.randn(32, 4, device=DEVICE)

    def step():
        hidden = table[inputs["ids"]]
        return hidden + rope[inputs["positions"]]  # HERE

    def vary():
        inputs["ids"].add_(1)
        inputs["positions"] = inputs["positions"] + 1

    return {"step": step, "vary": vary, "reset": None}
