"""The window comes from an environment variable read in every step."""

import os

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["frozen-host-value", "lost-kernel", "diverged"]
SUBJECTS = ["CORPUS_WINDOW", "environ", "window", "mul"]


def make():
    os.environ["CORPUS_WINDOW"] = "2"
    x = torch.arange(12.0, device=DEVICE)

    def step():
        window = int(os.environ.get("CORPUS_WINDOW", "4"))  # HERE
        return x[-window:].sum() * 2  # HERE

    def vary():
        os.environ["CORPUS_WINDOW"] = str(int(os.environ["CORPUS_WINDOW"]) % 8 + 1)

    return {"step": step, "vary": vary, "reset": None}
