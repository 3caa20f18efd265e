"""An environment variable changes its spelling, not its meaning."""

import os

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = []
SUBJECTS = []


def make():
    os.environ["CORPUS_FAST"] = "1"
    x = torch.arange(6.0, device=DEVICE)

    def fast():
        return os.environ.get("CORPUS_FAST", "0").lower() in ("1", "true", "on")

    def step():
        return x.square() if fast() else x.pow(3)

    def vary():
        os.environ["CORPUS_FAST"] = "true"
        x.add_(1)

    return {"step": step, "vary": vary, "reset": None}
