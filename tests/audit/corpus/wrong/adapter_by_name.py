"""Weights are looked up by the name of the current adapter."""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["frozen-host-value", "moved-address"]
SUBJECTS = ["adapter", "weights"]


def make():
    torch.manual_seed(0)
    weights = {name: torch.randn(4, 4, device=DEVICE) for name in ("base", "sql", "chat")}
    request = {"adapter": "base", "user": 1}
    x = torch.randn(2, 4, device=DEVICE)

    def step():
        return x @ weights[request["adapter"]]  # HERE

    def vary():
        names = list(weights)
        request["adapter"] = names[(names.index(request["adapter"]) + 1) % len(names)]
        request["user"] += 1

    return {"step": step, "vary": vary, "reset": None}
