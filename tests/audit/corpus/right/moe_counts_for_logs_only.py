"""Expert counts in a host list steer nothing: the routed work uses topk and index_add on the device."""

from dataclasses import dataclass, field

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = []
SUBJECTS = []


@dataclass
class ExpertLoad:
    """What the dashboard shows; filled by the scheduler, read by the layer's debug string."""

    counts: list = field(default_factory=lambda: [0] * 4)
    lines: list = field(default_factory=list)

    def imbalance(self):
        return max(self.counts) / (sum(self.counts) or 1)


class MoE(torch.nn.Module):
    def __init__(self, dim=6, experts=4):
        super().__init__()
        self.gate = torch.nn.Linear(dim, experts, bias=False, device=DEVICE)
        self.w = torch.nn.Parameter(torch.randn(experts, dim, dim, device=DEVICE))
        self.load = ExpertLoad()

    def forward(self, x):
        if self.load.imbalance() > 0.5:
            self.load.lines = [f"expert {self.load.counts.index(max(self.load.counts))} is hot"]
        weights, chosen = self.gate(x).softmax(-1).topk(2, dim=-1)
        out = torch.zeros_like(x)
        rows = torch.arange(len(x), device=x.device)
        for k in range(2):
            y = torch.einsum("td,tde->te", x, self.w[chosen[:, k]])
            out.index_add_(0, rows, torch.relu(y) * weights[:, k : k + 1])
        return out


def make():
    torch.manual_seed(0)
    layer = MoE().requires_grad_(False)
    x = torch.randn(5, 6, device=DEVICE)
    seen = [1, 1, 1, 1]

    def vary():
        x.neg_()
        seen[2] += 7
        layer.load.counts = list(seen)

    return {"step": lambda: layer(x), "vary": vary, "reset": None}
