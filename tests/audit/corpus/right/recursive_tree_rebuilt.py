"""A nested dict of tensors is rebuilt in another order before each step, and summed recursively."""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = []
SUBJECTS = []


def total(tree):
    match tree:
        case torch.Tensor():
            return tree.sum()
        case dict():
            return sum(total(branch) for branch in tree.values())
        case [first, *rest]:
            return total(first) + sum(map(total, rest))


def make():
    torch.manual_seed(0)
    a, b, c = (torch.randn(n, device=DEVICE) for n in (2, 3, 4))
    state = {"tree": {"left": [a, b], "right": {"only": c}}}

    def step():
        return total(state["tree"])

    def vary():
        old = state["tree"]
        state["tree"] = {key: old[key] for key in reversed(old)}
        a.add_(1), c.mul_(2)

    return {"step": step, "vary": vary, "reset": None}
