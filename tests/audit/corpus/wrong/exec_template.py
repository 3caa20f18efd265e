"""The step's body is generated with exec and reads its own namespace."""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["frozen-host-value"]
SUBJECTS = ["shift", "namespace", "STATE"]


TEMPLATE = """
def body(x):
    y = x * 2
    return y + shift
"""


def make():
    torch.manual_seed(0)
    x = torch.randn(4, device=DEVICE)
    namespace = {"shift": 1.0}
    exec(compile(TEMPLATE, "<generated>", "exec"), namespace)
    body = namespace["body"]

    def step():
        return body(x)  # HERE

    def vary():
        namespace["shift"] += 2

    return {"step": step, "vary": vary, "reset": None}
