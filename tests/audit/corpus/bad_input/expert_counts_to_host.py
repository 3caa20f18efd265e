"""Expert counts are brought to the host inside the step, to split the tokens."""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["host-sync"]
SUBJECTS = ["tolist", "bincount", "counts", "split"]


class GroupedGemm:
    def __init__(self, tokens=6, dim=4, experts=3):
        torch.manual_seed(0)
        self.experts = experts
        self.x = torch.randn(tokens, dim, device=DEVICE)
        self.w = torch.randn(experts, dim, dim, device=DEVICE)
        self.ids = torch.tensor([0, 2, 1, 0, 2, 2], device=DEVICE)

    def counts(self):
        one_hot = torch.nn.functional.one_hot(self.ids, self.experts)  # HERE
        return one_hot.sum(0).tolist()  # HERE

    def forward(self):
        order = torch.argsort(self.ids, stable=True)
        parts = self.x[order].split(self.counts())  # HERE
        return torch.cat([part @ self.w[e] for e, part in enumerate(parts)])


def make():
    layer = GroupedGemm()
    return {"step": layer.forward, "vary": lambda: layer.ids.copy_(layer.ids.roll(1)), "reset": None}
