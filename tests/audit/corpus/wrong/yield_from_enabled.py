"""Stages come out of nested generators that skip the disabled ones."""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["lost-kernel", "frozen-host-value"]
SUBJECTS = ["enabled", "stages"]


class Pipeline:
    def __init__(self):
        torch.manual_seed(0)
        self.x = torch.randn(6, device=DEVICE)
        self.enabled = {"norm": True, "gate": False}
        self.ops = {"norm": lambda t: t / t.abs().max(), "gate": lambda t: torch.sigmoid(t) * t}

    def named(self, names):
        for name in names:
            if self.enabled[name]:  # HERE
                yield self.ops[name]

    def stages(self):
        yield from self.named(["norm", "gate"])
        yield lambda t: t + 1

    def __call__(self):
        out = self.x
        for stage in self.stages():
            out = stage(out)
        return out


def make():
    pipeline = Pipeline()

    def vary():
        pipeline.enabled["gate"] = not pipeline.enabled["gate"]

    return {"step": pipeline, "vary": vary, "reset": None}
