"""Dropout layers are present and off (eval mode); an attribute of theirs changes without effect."""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = []
SUBJECTS = []


def make():
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Dropout(0.5), torch.nn.Linear(16, 8)
    ).to(DEVICE)
    model.eval()
    x = torch.randn(2, 8, device=DEVICE)

    @torch.inference_mode()
    def step():
        return model(x)

    def vary():
        model[2].p = 0.1
        x.add_(1)

    return {"step": step, "vary": vary, "reset": None}
