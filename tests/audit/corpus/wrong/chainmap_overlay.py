"""A ChainMap gets a new child with a request's own gain; missing before, so the default was read."""

from collections import ChainMap

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["frozen-host-value"]
SUBJECTS = ["gain", "conf", "maps"]


class Tuned:
    def __init__(self):
        torch.manual_seed(0)
        self.x = torch.randn(4, device=DEVICE)
        self.conf = ChainMap({}, {"gain": 1.0, "shift": 0.5})

    def __getitem__(self, key):
        return self.conf[key]  # HERE

    def __call__(self):
        return self.x * self["gain"] + self["shift"]  # HERE


def make():
    tuned = Tuned()

    def vary():
        tuned.conf.maps[0]["gain"] = tuned["gain"] * 2

    return {"step": tuned, "vary": vary, "reset": None}
