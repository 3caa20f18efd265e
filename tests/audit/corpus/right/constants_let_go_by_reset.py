"""A rotary table and a plan of an attention layer, both made of constants when first asked for; the reset
lets go of them, as the page asks. The graph holds the same numbers, and no serving step lets go.
"""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = []
SUBJECTS = []


class Attention:
    def __init__(self):
        torch.manual_seed(0)
        self.tables, self.plan, self.scale = {}, None, None
        self.x = torch.randn(8, device=DEVICE)

    def table(self, n):
        if n not in self.tables:
            self.tables[n] = torch.cos(torch.arange(n, device=DEVICE).float())
        return self.tables[n]

    def planned(self):
        if self.plan is None:
            self.plan = {
                "order": torch.arange(8, device=DEVICE).flip(0),
                "by": torch.full((8,), 0.5, device=DEVICE),
            }
        return self.plan

    def step(self):
        if self.scale is None:
            self.scale = torch.rsqrt(torch.arange(8, device=DEVICE) + 1.0)
        plan = self.planned()
        return self.x[plan["order"]] * plan["by"] * self.table(8) * self.scale

    def reset(self):
        self.tables.clear()
        self.plan = None
        self.scale = None


def make():
    attention = Attention()
    return {"step": attention.step, "vary": lambda: attention.x.mul_(-0.7), "reset": attention.reset}
