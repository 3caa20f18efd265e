"""Tokens sorted by expert are cut into per-expert slices by counts kept in a Python list."""

from dataclasses import dataclass, field

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["frozen-host-value", "lost-kernel", "moved-address"]
SUBJECTS = ["counts", "splits", "mm", "linear"]


@dataclass
class RoutingPlan:
    permutation: torch.Tensor
    inverse: torch.Tensor
    counts: list = field(default_factory=list)

    def update(self, expert_ids):
        order = sorted(range(len(expert_ids)), key=lambda i: expert_ids[i])
        self.permutation.copy_(torch.tensor(order))
        self.inverse.copy_(torch.argsort(torch.tensor(order)))
        self.counts = [expert_ids.count(e) for e in range(4)]


class GroupedMLP(torch.nn.Module):
    def __init__(self, dim=6):
        super().__init__()
        self.up = torch.nn.Parameter(torch.randn(4, dim, dim, device=DEVICE), requires_grad=False)

    def forward(self, x, plan):
        grouped = x[plan.permutation]
        out, start = [], 0
        for expert, count in enumerate(plan.counts):  # HERE
            if count == 0:
                continue
            rows = grouped[start : start + count]  # HERE
            out.append(torch.relu(rows @ self.up[expert]))  # HERE
            start += count
        return torch.cat(out)[plan.inverse]


def make():
    torch.manual_seed(0)
    index = lambda: torch.zeros(8, dtype=torch.long, device=DEVICE)  # noqa: E731
    plan, layer = RoutingPlan(index(), index()), GroupedMLP()
    x = torch.randn(8, 6, device=DEVICE)
    assignments = [[0, 1, 0, 1, 1, 0, 1, 1], [3, 1, 0, 2, 1, 0, 2, 3], [2, 2, 2, 0, 0, 1, 3, 3], [3] * 8]
    turn = iter(assignments * 10)
    plan.update(next(turn))

    def vary():
        x.add_(0.25)
        plan.update(next(turn))

    return {"step": lambda: layer(x, plan), "vary": vary, "reset": None}
