"""The step cannot run at all: shapes do not fit."""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["AuditError"]
SUBJECTS = ["shape", "mat", "RuntimeError"]


def project(x, w):
    return x @ w  # HERE


def make():
    x = torch.ones(2, 3, device=DEVICE)
    w = torch.ones(4, 4, device=DEVICE)
    return {"step": lambda: project(x, w), "vary": lambda: x.add_(1), "reset": None}
