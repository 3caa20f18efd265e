"""Options are deep-copied in every step, with a trace list in them that grows."""

import copy

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = []
SUBJECTS = []


class Optioned:
    def __init__(self):
        torch.manual_seed(0)
        self.x = torch.randn(5, device=DEVICE)
        self.options = {"bounds": [-1.0, 1.0], "trace": [], "tags": {"run": 0}}

    def __call__(self):
        options = copy.deepcopy(self.options)
        options["bounds"].sort()
        low, high = options.pop("bounds")
        self.options["trace"] = options["trace"][-3:] + [options["tags"]["run"]]
        return self.x.clamp(low, high)


def make():
    layer = Optioned()

    def vary():
        layer.options["tags"]["run"] += 1
        layer.x.mul_(1.3)

    return {"step": layer, "vary": vary, "reset": None}
