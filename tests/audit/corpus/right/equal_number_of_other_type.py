"""A frozen dataclass is replaced by one whose scale is 2.0 where it was 2."""

from dataclasses import dataclass, replace

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = []
SUBJECTS = []


@dataclass(frozen=True)
class Spec:
    scale: float
    label: str


class Scaler:
    def __init__(self):
        torch.manual_seed(0)
        self.x, self.spec = torch.randn(4, device=DEVICE), Spec(2, "int")

    def __call__(self):
        return self.x * self.spec.scale


def make():
    scaler = Scaler()

    def vary():
        other = (2.0, "float") if isinstance(scaler.spec.scale, int) else (2, "int")
        scaler.spec = replace(scaler.spec, scale=other[0], label=other[1])
        scaler.x.add_(1)

    return {"step": scaler, "vary": vary, "reset": None}
