"""A dict of buffers, each updated in place; the dict itself is rebuilt around the same tensors."""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = []
SUBJECTS = []


def make():
    torch.manual_seed(0)
    state = {"buffers": {"x": torch.randn(4, device=DEVICE), "y": torch.randn(4, device=DEVICE)}}

    def step():
        b = state["buffers"]
        return b["x"] * b["y"] - b["y"]

    def vary():
        for t in state["buffers"].values():
            t.add_(1.0)
        state["buffers"] = dict(reversed(state["buffers"].items()))

    return {"step": step, "vary": vary, "reset": None}
