"""The padding rows of a torch.empty workspace are summed though nobody wrote them."""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["unwritten-read"]
SUBJECTS = ["empty", "padded", "sum", "copy_"]


def make():
    torch.manual_seed(0)
    x = torch.randn(5, 4, device=DEVICE)

    def step():
        padded = torch.empty(8, 4, device=DEVICE)  # HERE
        padded[:5].copy_(x)
        return padded.sum(0)  # HERE

    def vary():
        x.add_(1.0)

    return {"step": step, "vary": vary, "reset": None}
