"""out= variants into views of one workspace of empty memory, all of it written before it is read."""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = []
SUBJECTS = []


class Out:
    def __init__(self):
        torch.manual_seed(0)
        self.x, self.w = torch.randn(4, 3, device=DEVICE), torch.randn(3, 6, device=DEVICE)
        self.space = torch.empty(64, device=DEVICE)

    def step(self):
        hidden = self.space[:24].view(4, 6)
        values = self.space[24:32].view(4, 2)
        ids = torch.empty(4, 2, dtype=torch.long, device=DEVICE)
        torch.mm(self.x, self.w, out=hidden)
        torch.topk(hidden, 2, dim=-1, out=(values, ids))
        torch.cumsum(values, 0, out=self.space[32:40].view(4, 2))
        return torch.zeros(4, 6, device=DEVICE).scatter_(1, ids, self.space[32:40].view(4, 2))


def make():
    layer = Out()
    return {"step": layer.step, "vary": lambda: layer.x.neg_(), "reset": None}
